// One view at a time in one place: the same view is told of new choices, another one ends what it was still asking for.

export class Stage {
  /** `node` holds the view; a view is a function of it and of a signal that says when it has ended. */
  constructor(node) {
    this.node = node;
    this.key = null;
    this.ending = null;
  }

  /** Show the view of a key, opening it if it is not there; return whether it was opened. */
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

  /** End the view that is shown. */
  close() {
    this.ending?.abort();
    this.node.replaceChildren();
    this.key = this.view = null;
  }
}
