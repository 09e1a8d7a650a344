// The estimated cost of a survey, which the cluster computes.

import { cards, element, fill, table } from "./elements.js";
import { request } from "./service.js";

const WAITING = "The cluster estimates the cost, which takes about half a minute…";
const DEVICES = ["one CPU core", "one H200 GPU"];
const UNITS = { bytes: [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]], time: [["h", 3600], ["min", 60], ["s", 1]] };

/** Show in an element the estimated cost of the spec that `readSpec` returns, or why there is none. */
export function showEstimate(node, readSpec, signal) {
  return fill(node, signal, async () => draw(await readEstimate(await readSpec(), signal)), WAITING);
}

async function readEstimate(spec, signal) {
  const headers = { "Content-Type": "application/json" };
  for (;;) {
    const options = { method: "POST", body: JSON.stringify(spec), headers, signal };
    const answer = await request("/v1/spec/estimate", options).catch((error) => {
      if (error.status === 422) error.title = "The survey is not possible";
      throw error;
    });
    if (answer.status !== 202) return answer.json();
    await new Promise((resolve) => setTimeout(resolve, 1000 * (answer.headers.get("Retry-After") || 2)));
    signal.throwIfAborted();
  }
}

function draw(estimate) {
  const sets = Object.values(estimate.sets);
  const sum = (name) => sets.reduce((total, set) => total + set[name], 0);
  const millions = sum("prompts") / 1e6;
  const ofKind = ([kind, about]) => about.gpus_per_replica
    ? [kind, about.gpus_per_replica, short(about.gpu_hours_per_million_prompts * millions), short(about.dollars_per_million_prompts * millions)]
    : [kind, about.why, "", ""];
  return [
    element("h2", "Estimated cost"),
    cards([
      ["prompts", count(sum("prompts"))],
      ["tokens", count(sum("tokens"))],
      ["computed tokens", count(sum("computed_tokens"))],
      ["stored activations", `at most ${inUnit(estimate.stored_bytes_at_most, UNITS.bytes)}`],
      ["memory of a replica", inUnit(estimate.replica_memory_bytes, UNITS.bytes)],
    ]),
    table(["part", ...DEVICES.map((device) => `time on ${device}`), "stored"], rowsOfParts(estimate), "About what each part costs", [1, 2, 3]),
    table(["GPU", "GPUs per replica", "GPU hours", "US dollars"], Object.entries(estimate.on_gpus_about).map(ofKind), "Cost by kind of GPU", [1, 2, 3]),
    element("p.soft.small", `All numbers are estimates, and bytes are those before compression. Analyses use all cores; only the capture and effects use a GPU. Tokens were counted by ${estimate.tokens_counted_by}; those that prompts share are computed once.`),
    ...(estimate.warnings ?? []).map((warning) => element("p.warn", warning)),
  ];
}

function rowsOfParts(estimate) {
  const row = ([name, part]) => [
    name,
    ...DEVICES.map((device) => device in part.seconds ? (part.seconds[device] < 1 ? "under 1 s" : `about ${inUnit(part.seconds[device], UNITS.time)}`) : ""),
    inUnit(part.bytes, UNITS.bytes),
  ];
  const others = Object.entries(estimate.on_request_about).map(([name, part]) => [`${name} (not requested)`, part]);
  return [...Object.entries(estimate.parts_about), ...others].map(row);
}

function count(value) {
  return value.toLocaleString("en");
}

function short(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 2 });
}

function inUnit(value, units) {
  const [unit, size] = units.find(([, one]) => value >= one) ?? units.at(-1);
  return `${short(value / size)} ${unit}`;
}
