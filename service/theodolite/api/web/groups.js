// The register of result groups from the service.

import { ask } from "./service.js";

let register = null;

/** Return all result groups in the order of the page, groups without sections last; the request is sent once. */
export function readGroups() {
  register ??= ask("/v1/groups").then(
    ({ items }) => [...items].sort((one, other) => (one.order ?? Infinity) - (other.order ?? Infinity) || 0),
    (error) => {
      register = null;
      throw error;
    },
  );
  return register;
}
