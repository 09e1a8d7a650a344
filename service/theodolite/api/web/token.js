// The bearer token of a service that requires one. It is stored only in the session of this tab, never in an address.

const KEY = "theodolite-token";
const part = (name) => document.getElementById(`token-${name}`);
let open = null;

export function currentToken() {
  return sessionStorage.getItem(KEY);
}

/**
 * Return whether another bearer token than the refused one is known; ask the user for it if there is none.
 *
 * Calls wait for the answer if the dialog is already open.
 */
export async function askForToken(reason, refused = null) {
  if (currentToken() !== refused) return true;
  open ??= opened(reason).finally(() => (open = null));
  return open;
}

/** Let the button in the page's header open the dialog: the token in use may lack the scope to submit. */
export function listenForToken(changed) {
  part("button").addEventListener("click", async () => {
    const before = currentToken();
    await askForToken(before ? "A bearer token is in use. Enter another one, or remove it." : "No bearer token is in use.", before);
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
