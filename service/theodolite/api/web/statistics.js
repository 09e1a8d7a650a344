// Which statistics are curves along depth, from the register of result groups.

const INDEX = /_feature$/; // the index of a feature is no number to compare

/** Return the statistics that all of these runs have, by group as a select shows them, and the dimensions of each. */
export function statisticsOf(runs, groups) {
  const dims = {};
  const offered = [];
  for (const { name: group, title, variables } of groups) {
    const there = runs.map((run) => run.results[group] ?? {});
    const ends = variables.flatMap(({ interval }) => (interval ? [`${interval}_low`, `${interval}_high`] : []));
    const found = variables.filter(
      ({ name, along_depth: isCurve }) =>
        isCurve && !ends.includes(name) && !INDEX.test(name) && there.every((one) => name in one),
    );
    for (const variable of found) dims[variable.name] = variable.dims;
    if (found.length)
      offered.push({ label: title, options: found.map(({ name }) => [name, name.replaceAll("_", " ")]) });
  }
  return { dims, groups: offered };
}
