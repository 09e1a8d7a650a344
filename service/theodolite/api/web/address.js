// The address after the # contains the view and its choices, so any state can be shared and Back undoes a choice.

/** Return the parts of an address's path, and its choices. */
export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s, 2);
  return { path: path.split("/").filter(Boolean).map(plain), choices: new URLSearchParams(query) };
}

/** Return the address of a path and its choices for a link; empty choices are left out. */
export function addressOf(path, choices = {}) {
  const query = new URLSearchParams();
  const entries = choices instanceof URLSearchParams ? [...choices] : Object.entries(choices);
  for (const [name, value] of entries)
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) query.append(name, one);
  return `#/${path.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** Change some choices of the current view: null removes a choice, a list gives it several values. */
export function choose(changes) {
  const { path, choices } = readAddress();
  for (const [name, value] of Object.entries(changes)) {
    choices.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== undefined) choices.append(name, one);
  }
  location.hash = addressOf(path, choices);
}

/** Go to an address without a step for Back, such as a tab that the arrow keys pass. */
export function replaceAddress(address) {
  location.replace(address);
}

function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a single % that a user typed
  }
}
