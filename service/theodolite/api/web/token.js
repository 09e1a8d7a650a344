// The token of a service that has any. It is kept in this tab's session alone, and never stands in an address.

const KEY = "theodolite-token";
const part = (name) => document.getElementById(`token-${name}`);
let open = null;

export function currentToken() {
  return sessionStorage.getItem(KEY);
}

/**
 * Return whether there is another token than the one that was refused, asking for it where there is none.
 *
 * Calls that come while the dialog is open wait for its answer.
 */
export async function askForToken(reason, refused = null) {
  if (currentToken() !== refused) return true;
  open ??= opened(reason).finally(() => (open = null));
  return open;
}

/** Let the button in the page's head open the dialog too: a token that reads may not be one that submits. */
export function listenForToken(changed) {
  part("button").addEventListener("click", async () => {
    const before = currentToken();
    await askForToken(before ? "One is in use; give another, or forget it." : "None is in use.", before);
    if (currentToken() !== before) changed();
  });
}

function opened(reason) {
  const dialog = part("dialog");
  part("reason").textContent = reason;
  part("text").value = "";
  part("forget").hidden = !currentToken();
  dialog.showModal();
  part("text").focus();
  return new Promise((resolve) => {
    const stop = new AbortController();
    const listen = (node, event, act) => node.addEventListener(event, act, { signal: stop.signal });
    let given = false;
    listen(part("form"), "submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, part("text").value.trim());
      given = true;
      dialog.close();
    });
    listen(part("cancel"), "click", () => dialog.close());
    listen(part("forget"), "click", () => {
      sessionStorage.removeItem(KEY);
      dialog.close();
    });
    listen(dialog, "close", () => {
      part("text").value = "";
      stop.abort();
      resolve(given);
    });
  });
}
