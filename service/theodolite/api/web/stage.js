// Shows one view at a time in a node: an open view gets new choices; another view replaces it and aborts its requests.

export class Stage {
  /** `node` contains the view; a view is a function of the node and of a signal that aborts when the view closes. */
  constructor(node) {
    this.node = node;
    this.key = null;
    this.ending = null;
  }

  /** Show the view of a key, and open it if it is not open yet; return whether it was opened. */
  show(key, open, address) {
    const isNew = key !== this.key;
    if (isNew) {
      this.close();
      this.key = key;
      this.ending = new AbortController();
      this.view = open(this.node, this.ending.signal);
    }
    this.view?.(address);
    return isNew;
  }

  /** Close the open view. */
  close() {
    this.ending?.abort();
    this.node.replaceChildren();
    this.key = this.view = null;
  }
}
