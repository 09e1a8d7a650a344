// Lists the statistics that are curves along depth, from the register of result groups.

const INDEX = /_feature$/; // the index of a feature cannot be compared

/** Return the statistics that all runs have, as groups of options for a select, and the dimensions of each. */
export function statisticsOf(runs, groups) {
  const dims = {};
  const offered = [];
  for (const { name: group, title, variables } of groups) {
    const stored = runs.map((run) => run.results[group] ?? {});
    const ends = variables.flatMap(({ interval }) => (interval ? [`${interval}_low`, `${interval}_high`] : []));
    const curves = variables.filter(
      ({ name, along_depth: isCurve }) =>
        isCurve && !ends.includes(name) && !INDEX.test(name) && stored.every((group) => name in group),
    );
    for (const variable of curves) dims[variable.name] = variable.dims;
    if (curves.length)
      offered.push({ label: title, options: curves.map(({ name }) => [name, name.replaceAll("_", " ")]) });
  }
  return { dims, groups: offered };
}
