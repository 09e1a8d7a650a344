// Which statistics are curves along depth: those whose dimensions are no more than a curve has.

const GROUPS = ["curves", "moments", "separation", "gram", "travel"];
const ALONG_DEPTH = ["set", "contrast", "site", "position", "layer"];
const ENDS = /(_low|_high|_feature)$/; // ends of intervals, and places, are no curves to compare

/** Return the statistics that all of these runs have, by group as a select shows them, and the dimensions of each. */
export function statisticsOf(runs) {
  const dims = {};
  const groups = [];
  for (const group of GROUPS.filter((name) => runs.every((run) => name in run.results))) {
    const found = Object.entries(runs[0].results[group]).filter(
      ([name, of]) => of.includes("layer") && of.every((dim) => ALONG_DEPTH.includes(dim)) && !ENDS.test(name),
    );
    for (const [name, of] of found) dims[name] = of;
    if (found.length) groups.push({ label: group, options: found.map(([name]) => [name, name.replaceAll("_", " ")]) });
  }
  return { dims, groups };
}
