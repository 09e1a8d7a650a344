"""The full route: a plain forward of all tokens for each variant, for any model, and as the reference."""

from collections.abc import Sequence

import torch

from theodolite.sites import Site
from theodolite_jobs.effects.hooks import ONLY_LAST, Columns, Receive, Work, working
from theodolite_jobs.effects.intact import Intact
from theodolite_jobs.effects.outcome import Collector, Outcome, Reading
from theodolite_jobs.effects.variants import Location, Variant
from theodolite_jobs.models.loaded import LoadedModel


@torch.inference_mode()
def run_full(
    model: LoadedModel, intact: Intact, variants: Sequence[Variant], readings: Sequence[Reading] = ()
) -> Outcome:
    """Return what variants change; each variant costs a forward of all tokens of the prompts.

    Raises:
        KeyError: a location of `variants` or `readings` is not among those of the intact forward.
    """
    collector = Collector(intact, variants, readings)
    last_block = Location(Site.RESID_POST, len(model.blocks) - 1)
    for index in collector.to_run:
        variant = variants[index]
        final: list[torch.Tensor] = []
        reads: list[tuple[Location, Receive]] = [(last_block, final.append)]
        reads += [(reading.location, collector.receiver(which, [index])) for which, reading in enumerate(readings)]
        work = Work({location: [(0, change)] for location, change in variant.changes.items()}, reads)
        with working(model, Columns(len(intact.tokens), ONLY_LAST), work):
            output = model.run(input_ids=intact.tokens, use_cache=False)[0]
        collector.store(collector.outcome.final, [index], final[0])
        collector.store(collector.outcome.output, [index], output[:, -1:])
    return collector.outcome
