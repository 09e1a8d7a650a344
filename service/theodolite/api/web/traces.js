// Which lines of a contrast's figure belong to which site and set. Lines are called “debiased, pre” or “harmful, mid”;
// an interval's band comes just before its line.

/** Return how a site is called where space is short. */
export const shortSite = (site) => site.replace(/^resid_/, "");

/**
 * Return the figure with the chosen lines alone, and what is chosen: none of the sites are those drawn at once, none of
 * the sets are all.
 */
export function chosenTraces(figure, allSites, allSets, wantedSites, wantedSets) {
  const sitesOf = siteOfEach(figure.data, allSites);
  const atOnce = allSites.filter((site) =>
    figure.data.some((trace, index) => sitesOf[index] === site && trace.visible === true),
  );
  const known = wantedSites.filter((site) => allSites.includes(site));
  const sites = known.length ? known : atOnce;
  const wanted = wantedSets.filter((set) => allSets.includes(set));
  const shownSets = wanted.length ? wanted : allSets;
  let bandIsNamed = false;
  const data = figure.data.map((trace, index) => {
    const site = sitesOf[index];
    const set = trace.legend === "legend2" ? allSets.find((one) => trace.name.startsWith(`${one}, `)) : undefined;
    if ((site && !sites.includes(site)) || (set && !shownSets.includes(set))) return { ...trace, visible: false };
    const made = { ...trace, visible: true };
    if (isBand(trace)) {
      // The first band that is seen stands in the legend for all of them.
      made.showlegend = !bandIsNamed;
      bandIsNamed = true;
    }
    return made;
  });
  return { figure: { ...figure, data }, sites, shownSets };
}

function siteOfEach(traces, allSites) {
  const sites = new Array(traces.length);
  let following;
  for (let index = traces.length - 1; index >= 0; index--) {
    const last = (traces[index].name ?? "").split(", ").at(-1);
    if (!isBand(traces[index])) following = allSites.find((site) => shortSite(site) === last);
    sites[index] = following;
  }
  return sites;
}

const isBand = (trace) => trace.fill === "toself";
