// The register of result groups, as the service describes it.

import { ask } from "./service.js";

let register = null;

/** Return all result groups, in the order of the page; those that show nothing come last. Asked for once. */
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
