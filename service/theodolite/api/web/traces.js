// Which traces of a contrast's figure are shown: the service writes the site and the set of each into its `meta`.

/** Return how a site is called where space is short. */
export const shortSite = (site) => site.replace(/^resid_/, "");

/**
 * Return the figure with the chosen traces alone, and what is chosen: no sites mean those that the figure shows at
 * first, no sets mean all.
 */
export function chosenTraces(figure, allSites, allSets, wantedSites, wantedSets) {
  const shownFirst = allSites.filter((site) =>
    figure.data.some((trace) => trace.meta?.site === site && trace.visible === true),
  );
  const known = wantedSites.filter((site) => allSites.includes(site));
  const sites = known.length ? known : shownFirst;
  const wanted = wantedSets.filter((set) => allSets.includes(set));
  const shownSets = wanted.length ? wanted : allSets;
  let bandIsNamed = false;
  const data = figure.data.map((trace) => {
    const { site, set } = trace.meta ?? {};
    if ((site && !sites.includes(site)) || (set && !shownSets.includes(set))) return { ...trace, visible: false };
    const made = { ...trace, visible: true };
    if (trace.fill === "toself") {
      // The first band that is shown stands in the legend for all of them.
      made.showlegend = !bandIsNamed;
      bandIsNamed = true;
    }
    return made;
  });
  return { figure: { ...figure, data }, sites, shownSets };
}
