"""Take the pictures of the documentation: views and single figures of the page, of the newest run of the demo.

The first argument is a store with that run. `make figures` runs this program.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright
from transformers import Qwen3MoeConfig

from theodolite.query.runs import summaries
from theodolite.run_reader import open_run
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.spec_options import ProbesSpec
from theodolite.spec_parts import ModelSpec
from theodolite.store.runs import open_run as open_stored_run
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.models.load import load_config, load_tokenizer
from theodolite_jobs.models.source import fetch, resolve_source
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

FOLDER = Path(__file__).with_name("pictures")
WIDE, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=400, height=860)
TALL = ViewportSize(width=1100, height=1800)  # a whole figure fits below the header
HIGH = ViewportSize(width=1280, height=1180)  # a comparison fits below the header
PATIENCE = 120_000  # milliseconds

Scheme = Literal["light", "dark"]

PICTURES = {
    "overview": ("", WIDE, "light", None),
    "prompts": ("/prompts?contrast=matched&prompt=59", WIDE, "light", "h2"),
    "curves": ("/curves", WIDE, "light", "figure"),
    "curves-dark": ("/curves", WIDE, "dark", "figure"),
    "separation": ("/separation", WIDE, "dark", "figure"),
    "heads": ("/heads?circuit=ov&layer=27&head=2", WIDE, "light", "figure"),
    "tables-phone": ("/tables?table=growth", PHONE, "dark", None),
    "phone": ("", PHONE, "light", None),
}
"""The tab of the run, the size of the window, the colours, and what to scroll to, for each picture."""

PICTURES_OF_WORDS = {
    "words": ("/words", WIDE, "dark", "figure"),
    "tables": ("/tables?table=head_tokens&where=token~king&order=-score", WIDE, "light", None),
}
"""The same for pictures of a run with words, which the demo has not."""


FIGURES = {
    "figure-curves": "curves.matched.-1",
    "figure-separation": "separation.matched",
    "figure-reliability": "directions.matched",
    "figure-gram": "gram.shape",
    "figure-sphere": "sphere.norms",
    "figure-travel": "travel.variance",
    "figure-growth": "travel.growth.harmful",
    "figure-basis": "basis.maps.harmful",
    "figure-weights": "weights.written.down",
    "figure-heads": "heads.ov_write.matched.z",
    "figure-contributions": "contributions.matched",
    "figure-effects": "effects.matched",
    "figure-logit_lens": "logit_lens.refusal.raised",
}
"""The name of the figure in the run, for each picture of a single figure."""

FIGURES_OF_WORDS = {"figure-words": "words.0.curves"}
"""The same for pictures of the run with words."""

FIGURES_OF_PROBES = {"figure-probes": "probes.matched"}
"""The same for pictures of the demo with the analysis `probes`, which takes minutes."""

EXPERT_FIGURES = {"figure-routing": "routing.difference.refusal"}
"""The same for pictures of another run, since the demo's model has no experts."""

EXPERTS = {
    "num_hidden_layers": 12,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "initializer_range": 0.1,
}
"""The sizes of the untrained mixture of experts of that run."""


def main() -> None:
    """Take all pictures; fails if the store has no complete run of the demo."""
    store = sys.argv[1]
    demos = [run["run_id"] for run in summaries(store) if run["name"] == "demo" and run["state"] == "complete"]
    if not demos:
        sys.exit(f"{store} has no complete run of the demo; run `make demo` first")
    FOLDER.mkdir(exist_ok=True)
    with served(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
        )
        for name, (view, *options) in PICTURES.items():
            take(browser, f"{address}/#/runs/{demos[0]}{view}", FOLDER / f"{name}.png", *options)
        for name, view in (("runs", "runs"), ("new-survey", "new")):
            take(browser, f"{address}/#/{view}", FOLDER / f"{name}.png", WIDE, "light", None)
        take_figures(browser, store, f"{address}/#/runs/{demos[0]}", demos[0], FIGURES)
        with TemporaryDirectory() as folder:
            run = survey_words(folder)
            with served(folder) as other:
                for name, (view, *options) in PICTURES_OF_WORDS.items():
                    take(browser, f"{other}/#/runs/{run}{view}", FOLDER / f"{name}.png", *options)
                take_figures(browser, folder, f"{other}/#/runs/{run}", run, FIGURES_OF_WORDS)
        with TemporaryDirectory() as folder:
            compute_probes(store, demos[0], folder)
            with served(folder) as other:
                take_figures(browser, folder, f"{other}/#/runs/{demos[0]}", demos[0], FIGURES_OF_PROBES)
        with TemporaryDirectory() as folder:
            twin = survey_twin(store, demos[0], folder)
            with served(folder) as other:
                comparison = f"{other}/#/compare?run={demos[0]}&run={twin}&contrast=matched"
                take(browser, comparison, FOLDER / "compare.png", HIGH, "light", "h2")
        with TemporaryDirectory() as folder:
            run = survey_experts(folder)
            with served(folder) as other:
                take_figures(browser, folder, f"{other}/#/runs/{run}", run, EXPERT_FIGURES)
        browser.close()


def survey_words(store: str) -> str:
    """Survey nouns and a sentence with the demo's model; return the run."""
    spec = parse_spec(
        {
            "name": "words",
            "model": {"id": "smollm2-135m-instruct"},
            "prompts": {"nouns": {"source": "builtin:nouns"}},
            "analyses": ["words"],
            "words": {},
        }
    )
    return survey(spec, Path(), Settings(store=store), Console()).id


def compute_probes(store: str, run: str, into: str) -> None:
    """Copy the demo's run into another store and compute its probes there."""
    shutil.copytree(Path(store, "runs", run), Path(into, "runs", run))
    copied = open_stored_run(into, run)
    few = ProbesSpec(draws=19)  # the time grows with them
    spec = copied.record.spec.model_copy(update={"analyses": ["probes"], "effects": None, "probes": few})
    analyse_run(copied, spec, None, Settings(store=into), Console())


def survey_twin(store: str, run: str, into: str) -> str:
    """Copy the demo's run into another store and survey its untrained twin there; return the twin."""
    shutil.copytree(Path(store, "runs", run), Path(into, "runs", run))
    sides = {"positive": "harmful", "negative": "harmless"}
    spec = parse_spec(
        {
            "model": {"id": "smollm2-135m-instruct", "weights": "random"},
            "prompts": {name: {"source": f"builtin:{name}"} for name in sides.values()},
            "contrasts": {"matched": {**sides, "paired": True}},
            "analyses": ["curves", "separation", "permutations"],
        }
    )
    return survey(spec, Path(), Settings(store=into), Console()).id


def survey_experts(store: str) -> str:
    """Survey the prompts of the demo with an untrained mixture of experts and the demo's tokenizer; return the run."""
    sides = {"positive": "harmful", "negative": "harmless"}
    with TemporaryDirectory() as folder:
        demo = fetch(resolve_source(ModelSpec(id="smollm2-135m-instruct"), Path()), Path(folder), weights=False)
        model = Path(folder) / "untrained-experts"
        load_tokenizer(demo, False).save_pretrained(model)
        Qwen3MoeConfig(vocab_size=load_config(demo).vocab_size, **EXPERTS).save_pretrained(model)
        spec = parse_spec(
            {
                "name": "experts",
                "model": {"id": str(model), "weights": "random", "dtype": "float32"},
                "prompts": {name: {"source": f"builtin:{name}"} for name in sides.values()},
                "contrasts": {"refusal": {**sides, "paired": True}},
                "analyses": ["curves", "routing"],
            }
        )
        return survey(spec, Path(), Settings(store=store), Console()).id


@contextmanager
def served(store: str) -> Iterator[str]:
    """Serve a store on a free port, and yield the address."""
    command = [str(Path(sys.executable).with_name("theodolite")), "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" at ")[2].split()[0]
        finally:
            process.terminate()


@contextmanager
def opened(browser: Browser, address: str, size: ViewportSize, scheme: Scheme) -> Iterator[Page]:
    """Open a view, wait until it is drawn, and yield its page."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(address)
    expect(page.locator("main h1")).to_have_count(1, timeout=PATIENCE)
    page.wait_for_timeout(500)
    expect(page.locator(".waiting, [aria-busy]")).to_have_count(0, timeout=PATIENCE)
    yield page
    context.close()


def take(browser: Browser, address: str, file: Path, size: ViewportSize, scheme: Scheme, scroll_to: str | None) -> None:
    """Open a view, scroll to an element of it, and save what the window shows."""
    with opened(browser, address, size, scheme) as page:
        if scroll_to:
            page.locator(f"main {scroll_to}").first.evaluate("node => scrollTo(0, node.offsetTop - 70)")
            page.wait_for_timeout(500)
        page.screenshot(path=file)
    print(file)


def take_figures(browser: Browser, store: str, address: str, run: str, figures: Mapping[str, str]) -> None:
    """Save some figures of a run alone; the page names a figure by its caption."""
    reader = open_run(store, run)
    for picture, name in figures.items():
        group, file = name.partition(".")[0], FOLDER / f"{picture}.png"
        drawn = [figure for section in reader.section(group) for figure in [*section["figures"], *section["maps"]]]
        caption = next(figure["caption"] for figure in drawn if figure["name"] == name)
        place = [figure["name"] for figure in drawn if figure["caption"] == caption].index(name)
        view = f"{address}/{group}?map={name}"
        if group == "curves":  # its tab draws one contrast at a time
            view, place = f"{view}&contrast={name.split('.')[1]}", 0
        with opened(browser, view, TALL, "light") as page:
            page.evaluate("document.querySelectorAll('main details').forEach(node => (node.open = true))")
            page.wait_for_timeout(500)
            expect(page.locator(".waiting, [aria-busy=true]")).to_have_count(0, timeout=PATIENCE)
            page.get_by_role("img", name=caption, exact=True).nth(place).screenshot(path=file)
        print(file)


if __name__ == "__main__":
    main()
