"""A direction that is used, and a direction that is only readable: both separate two sets, and only one has effects."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.tiny_sizes import PLAIN

from theodolite.sites import Site
from theodolite_jobs.effects.full_route import run_full
from theodolite_jobs.effects.intact import run_intact
from theodolite_jobs.effects.one_token import run_one_token
from theodolite_jobs.effects.variants import Add, Location, Patch, Remove, Variant
from theodolite_jobs.groups.effects.formulas import projection, restored_of_pair
from theodolite_jobs.models.load import wrap
from theodolite_jobs.statistics.next_token import kl_divergence, log_odds

YES, NO = [10, 11], [20, 21, 22]
LAST_OF_FIRST, LAST_OF_SECOND = 60, 61  # last tokens of the two sets
AT = [Location(site, layer) for layer in (0, 2, 4) for site in (Site.RESID_PRE, Site.RESID_MID)]
CONTROLS = 20


class Planted:
    """A model without norms, in which tokens write both directions and nothing reads `unused`."""

    def __init__(self):
        self.model = wrap(_without_norms(tiny.tiny_model("llama")))
        module = self.model.module
        width = self.model.dimensions.d_model
        generator = torch.Generator().manual_seed(0)
        self.used, self.unused = torch.linalg.qr(torch.randn(width, 2, generator=generator))[0].T
        both = torch.stack([self.used, self.unused])
        head = torch.randn(PLAIN["vocab_size"], width, generator=generator) * 0.05
        with torch.no_grad():
            for block in module.layers:
                attention, mlp = block.self_attn, block.mlp
                for reads in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
                    reads.weight -= torch.outer(reads.weight @ self.unused, self.unused)
                for writes in (attention.o_proj, mlp.down_proj):
                    writes.weight -= both.T @ (both @ writes.weight)
                    writes.bias -= both.T @ (both @ writes.bias)
                    writes.weight *= 0.05  # without norms, all blocks together would grow the stream
            table = module.embed_tokens.weight
            table -= (table @ both.T) @ both
            table[LAST_OF_FIRST] = 0.5 * table[5] + self.used + self.unused
            table[LAST_OF_SECOND] = 0.5 * table[5] - self.used - self.unused
            head -= (head @ both.T) @ both
            head[YES] += self.used
            head[NO] -= self.used
        self.head = head
        start = tiny.random_tokens([9] * 8)
        self.prompts = [(*ids, LAST_OF_FIRST) for ids in start] + [(*ids, LAST_OF_SECOND) for ids in start]

    def logits(self, output):
        return (output.double() @ self.head.double().T).numpy()


def _without_norms(module):
    module.norm = torch.nn.Identity()
    for block in module.layers:
        block.input_layernorm = block.post_attention_layernorm = torch.nn.Identity()
    return module


@pytest.fixture(scope="module")
def planted():
    return Planted()


@pytest.fixture(scope="module")
def intact(planted):
    return run_intact(planted.model, planted.prompts, AT, is_cached=True)


def kl_of(planted, intact, changes, route=run_one_token):
    """Return the KL divergence of changes at every location, (change, location), as means over prompts."""
    variants = [Variant({location: change}) for change in changes for location in AT]
    changed = planted.logits(route(planted.model, intact, variants).output)
    kl = kl_divergence(planted.logits(intact.output)[:, None], changed)
    return kl.mean(axis=0).reshape(len(changes), len(AT))


def test_both_directions_separate_the_sets_at_every_location(planted, intact):
    for location in AT:
        scores = projection(intact.states[location].numpy(), torch.stack([planted.used, planted.unused]).numpy())
        assert (scores[:8] > 0.9).all()
        assert (scores[8:] < -0.9).all()


@each("route", [run_one_token, run_full])
def test_only_the_used_direction_has_an_effect_when_it_is_removed(planted, intact, route):
    used, unused = kl_of(planted, intact, [Remove(planted.used), Remove(planted.unused)], route)
    assert (used > 0.05).all()
    assert (unused < 1e-9).all()


def test_the_effect_of_the_used_direction_alone_stands_out_from_random_directions(planted, intact):
    generator = torch.Generator().manual_seed(1)
    random = [Remove(torch.randn(planted.used.shape, generator=generator)) for _ in range(CONTROLS)]
    used, unused, *controls = kl_of(planted, intact, [Remove(planted.used), Remove(planted.unused), *random])

    def p(effect):
        """Return the share of directions, the tested one included, with as large an effect, at the first location."""
        return (1 + sum(control[0] >= effect[0] for control in controls)) / (1 + CONTROLS)

    assert p(used) == 1 / (1 + CONTROLS)
    assert p(unused) == 1


def test_a_dose_moves_the_log_odds_along_the_used_direction_only(planted, intact):
    doses = [-2.0, -1.0, 0.0, 1.0, 2.0]
    for direction, slope in ((planted.used, 2.0), (planted.unused, 0.0)):
        variants = [Variant({AT[-1]: Add(direction, dose)}) for dose in doses]
        logits = planted.logits(run_one_token(planted.model, intact, variants).output)
        before = log_odds(planted.logits(intact.output), YES, NO)
        moved = log_odds(logits, YES, NO) - before[:, None]
        assert (moved[:, 2] == 0).all()  # dose 0
        # The block reads the direction too, through a branch that is small: the head alone would give the slope.
        np.testing.assert_allclose(moved.mean(axis=0), slope * np.array(doses), atol=0.2 if slope else 1e-5)


def test_a_patch_with_the_pair_restores_all_of_the_difference(planted, intact):
    partner = [*range(8, 16), *range(8)]  # the pair has the same first tokens
    variants = [Variant({location: Patch(intact.states[location][partner])}) for location in AT]
    changed = log_odds(planted.logits(run_one_token(planted.model, intact, variants).output), YES, NO)
    own = log_odds(planted.logits(intact.output), YES, NO)
    shares = restored_of_pair(changed, own[:, None], own[partner][:, None])
    np.testing.assert_allclose(shares[:, 0], 1.0, atol=1e-4)  # before the first block
