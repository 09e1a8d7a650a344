// The arrays of a run by analysis: their axes, units and meaning, and how one reads them.

import { element, problem, table } from "./elements.js";
import { downloadFile } from "./export.js";
import { opened } from "./sections.js";
import { ofRun, queryOf, request } from "./service.js";

/** Return all arrays of the finished analyses of a run, folded. */
export function arraysOf(run, analyses) {
  const finished = analyses.filter(({ name, variables }) => run.analyses.includes(name) && variables.length);
  if (!finished.length) return "";
  const count = finished.reduce((sum, { variables }) => sum + variables.length, 0);
  return opened(`All ${count} arrays, in Python and as files`, () => [
    element("p.soft", "In Python: ", element("code", `theodolite.open_run(STORE, "${run.run_id}").group("${finished[0].name}")`),
      ". An array along depth is also a file in CSV."),
    ...finished.flatMap((analysis) => ofAnalysis(run, analysis)),
  ]);
}

function ofAnalysis(run, { name, title, variables }) {
  const rows = variables.map((array) => [
    element("code", array.name), array.dims.join(", "), array.units, array.description, array.curves.length ? fileButton(run, array) : "",
  ]);
  return [
    element("h3", `${title} (${name})`),
    element("div.wrapped", table(["array", "axes", "unit", "meaning", "file"], rows, `Arrays of ${title}`)),
  ];
}

/** Return a button that downloads an array along depth. */
function fileButton(run, { name, curves }) {
  const get = async ({ target }) => {
    target.disabled = true;
    try {
      const answer = await request(`${ofRun(run.run_id, "curves")}${queryOf({ statistic: curves, format: "csv", limit: 1000 })}`, {});
      downloadFile(`${run.run_id}.${name}.csv`, await answer.blob());
    } catch (error) {
      target.after(problem(error));
    }
    target.disabled = false;
  };
  return element("button", { type: "button", "aria-label": `${name} as CSV`, onclick: get }, "CSV");
}
