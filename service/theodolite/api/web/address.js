// The view and its choices live in the address after the #, so that any state can be shared and Back undoes a choice.

/** Return the path of an address, in parts, and its choices. */
export function readAddress(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s, 2);
  return { path: path.split("/").filter(Boolean).map(plain), choices: new URLSearchParams(query) };
}

/** Return an address as a link has it; choices that are empty are left out. */
export function addressOf(path, choices = {}) {
  const query = new URLSearchParams();
  const entries = choices instanceof URLSearchParams ? [...choices] : Object.entries(choices);
  for (const [name, value] of entries)
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) query.append(name, one);
  return `#/${path.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** Change some choices of the view that is shown: null takes one away, a list gives several of it. */
export function choose(changes) {
  const { path, choices } = readAddress();
  for (const [name, value] of Object.entries(changes)) {
    choices.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== undefined) choices.append(name, one);
  }
  location.hash = addressOf(path, choices);
}

/** Go to an address without leaving a step for Back, as where a tab is only passed with the arrow keys. */
export function replaceAddress(address) {
  location.replace(address);
}

function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % that somebody typed
  }
}
