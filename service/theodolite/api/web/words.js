// The tab Words: the sections of the analysis, and a form that gets the trajectory of a typed sentence as a survey job.

import { addressOf } from "./address.js";
import { element, fill } from "./elements.js";
import { labelled } from "./form-fields.js";
import { Jobs, isActive } from "./jobs.js";
import { errorMessage } from "./live-check.js";
import { howToRead, openSections, readSections, sectionNode } from "./sections.js";
import { ask, ofRun, send } from "./service.js";

const EXAMPLE = "To kill two birds with one stone";
const LONGEST = 100_000; // characters of a sentence in a spec
const OWN = "words.0."; // how the names of a survey's figures of its first sentence begin

/** Open the tab. */
export function openWords(node, signal, run) {
  const own = element("section"), stored = element("div");
  node.append(stored, own);
  openForm(own, signal, run);
  openSections(stored, signal, run, "words");
}

/** Show the form if the service has a cluster and surveys the run's model, or else the reason why there is none. */
async function openForm(node, signal, run) {
  const reason = (text) => node.replaceChildren(element("p.soft", `The page cannot get the trajectory of another sentence: ${text}`));
  try {
    const { has_cluster: hasCluster } = await specOf(run, EXAMPLE);
    if (signal.aborted) return;
    if (hasCluster) node.replaceChildren(...new SentenceForm(run, signal).nodes);
    else reason("this service has no cluster for survey jobs.");
  } catch (error) {
    if (!signal.aborted) reason(error.message);
  }
}

/** Return the service's check of the survey of a sentence, with its spec. */
function specOf(run, sentence) {
  return send("POST", ofRun(run.run_id, "sentence-spec"), { sentence });
}

class SentenceForm {
  constructor(run, signal) {
    Object.assign(this, { run, signal });
    this.field = element("input", {
      type: "text", id: "sentence", required: true, maxlength: LONGEST, autocomplete: "off", placeholder: EXAMPLE,
    });
    this.button = element("button.main", { type: "submit" }, "Get its trajectory");
    this.status = element("div", { role: "status" });
    this.problem = element("div", { role: "alert" });
    this.result = element("div");
    this.nodes = [
      element("h2", "Trajectory of your sentence"),
      element("p.soft", "The cluster computes it as a survey job of its own, with this model and this sentence. The job also decomposes the heads of the model, so it takes long for a large one. Its run stays in the list of runs, and everyone who can read this service can read the sentence. The same sentence again is the same run."),
      element("form.sentence", { onsubmit: (event) => this.submit(event) }, labelled("sentence", this.field), this.button),
      this.status,
      this.problem,
      this.result,
    ];
  }

  async submit(event) {
    event.preventDefault();
    const sentence = this.field.value;
    this.replace();
    this.say("The page submits the survey…");
    this.button.disabled = true;
    try {
      const { spec } = await specOf(this.run, sentence);
      const job = await send("POST", "/v1/jobs", spec);
      if (!this.signal.aborted) this.follow(job.id);
    } catch (error) {
      if (this.signal.aborted) return;
      this.say("");
      this.problem.replaceChildren(errorMessage(error, "The sentence is not valid"));
    } finally {
      this.button.disabled = false;
    }
  }

  /** Remove what is shown of the sentence before, whose survey job continues. */
  replace() {
    this.shown?.abort();
    this.shown = new AbortController();
    this.problem.replaceChildren();
    this.result.replaceChildren();
  }

  /** Show the survey job until it has succeeded, and then the trajectory. */
  follow(id) {
    const signal = AbortSignal.any([this.signal, this.shown.signal]);
    const jobs = new Jobs(signal, id, ([job]) => {
      if (isActive(job)) return this.say("The trajectory appears here when the survey job has succeeded.");
      if (job.state !== "succeeded" || !job.run_id) return this.say("The survey job has ended without a trajectory.");
      jobs.stop.abort();
      this.show(job.run_id, signal);
    });
    this.result.replaceChildren(jobs.node);
    jobs.poll();
  }

  /** Show a text; a screen reader reads each change, so an equal text stays. */
  say(text) {
    if (this.status.textContent !== text) this.status.replaceChildren(text && element("p.soft", text));
  }

  show(id, signal) {
    document.dispatchEvent(new Event("runs-changed"));
    const link = element("a", { href: addressOf(["runs", id, "words"]) }, id);
    this.status.replaceChildren(element("p", "The survey job has succeeded. Its run is ", link, "."));
    fill(this.result, signal, async () => {
      const run = await ask(ofRun(id), {}, signal);
      const sections = (await readSections(run, "words", signal)).filter(isOwn);
      if (sections.length === 0) return element("p.nothing", "The sentence has no trajectory: it is a single token, which precedes no other one, or its activations could not be captured. The run has the details.");
      return [...sections.map((section) => sectionNode(section, run, signal)), ...howToRead(sections)];
    });
  }
}

function isOwn({ figures }) {
  return figures.some(({ name }) => name.startsWith(OWN));
}
