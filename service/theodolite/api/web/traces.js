// Selects the traces of a contrast's figure by site and set, which the service writes into the `meta` of each trace.

/** Return the short name of a site. */
export const shortSite = (site) => site.replace(/^resid_/, "");

/**
 * Return the figure with only the chosen traces visible, and the chosen sites and sets. No sites select those that the
 * figure shows first; no sets select all.
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
      // Only the first visible band has a legend entry, for all bands.
      made.showlegend = !bandIsNamed;
      bandIsNamed = true;
    }
    return made;
  });
  return { figure: { ...figure, data }, sites, shownSets };
}
