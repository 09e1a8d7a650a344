"""Patches of attention, MLPs and blocks equal full forwards of plain torch in which hooks replace the same outputs."""

import numpy as np
import torch
from support import tiny
from support.each import each
from support.tiny_sizes import GROUPED
from transformers import AutoModel, Lfm2Config

from theodolite.groups.effects.record import ATTENTION, BLOCK, MLP
from theodolite.sites import Site
from theodolite_jobs.effects.measure import measure
from theodolite_jobs.effects.next_token import LogitHead
from theodolite_jobs.effects.work import Question, Vectors
from theodolite_jobs.models.load import wrap

FIRST, SECOND = [1, 2], [3]
LAYERS = (0, 2, 4)
QUESTION = Question((Site.RESID_PRE,), LAYERS, (-1.0, 1.0), tuple(FIRST), tuple(SECOND), True, True)
TOKENS = tiny.random_tokens([9, 12, 9, 9])
TABLE = torch.randn(64, GROUPED["hidden_size"], generator=torch.Generator().manual_seed(0))
BOUND = 5e-5

# The modules whose outputs are added to the stream, and the final norm.
MODULES = {
    "llama": ("layers.{}.self_attn", "layers.{}.mlp", "norm"),
    "gemma2": ("layers.{}.post_attention_layernorm", "layers.{}.post_feedforward_layernorm", "norm"),
    "gpt_neox": ("layers.{}.attention", "layers.{}.mlp", "final_layer_norm"),  # attention and MLP in parallel
}


def measured(module, table=TABLE):
    """Return the effects of patches; all directions are 0, so removing or adding them changes nothing."""
    model = wrap(module)
    none = np.zeros((2, len(QUESTION.places), model.dimensions.d_model), np.float32)
    vectors = Vectors(none[0], none, none, none, none[0, :0])
    return measure(model, LogitHead(table), QUESTION, vectors, TOKENS)


class Plain:
    """Forwards of one prompt with plain hooks."""

    def __init__(self, family):
        self.module = tiny.tiny_model(family)
        *self.paths, self.norm = MODULES[family]

    @torch.inference_mode()
    def run(self, ids, replaced=None):
        """Return the log-probabilities, the input of the final norm, and the outputs of the parts at the last token."""
        replaced, outputs, stream, handles = replaced or {}, {}, [], []

        def hook_of(path):
            def hook(_, __, output):
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                if path in replaced:
                    hidden[0, -1] = replaced[path]
                outputs[path] = hidden[0, -1]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            return hook

        norm = self.module.get_submodule(self.norm)
        for path in (path.format(layer) for path in self.paths for layer in LAYERS):
            handles.append(self.module.get_submodule(path).register_forward_hook(hook_of(path)))
        handles.append(norm.register_forward_pre_hook(lambda _, args: stream.append(args[0][0, -1])))
        last = self.module(input_ids=torch.tensor([ids]), use_cache=False)[0][0, -1]
        for handle in handles:
            handle.remove()
        return log_probabilities(last), stream[0], outputs

    @torch.inference_mode()
    def from_stream(self, stream):
        return log_probabilities(self.module.get_submodule(self.norm)(stream))


def log_probabilities(output):
    return (output @ TABLE.T).double().log_softmax(-1)


def log_odds(log_p):
    return float(log_p[FIRST].logsumexp(-1) - log_p[SECOND].logsumexp(-1))


@each("family", MODULES)
def test_a_patch_equals_a_full_forward_with_the_outputs_of_the_other_prompt(family):
    plain = Plain(family)
    attention, mlp = plain.paths
    found = measured(tiny.tiny_model(family))
    intact = [plain.run(ids) for ids in TOKENS]
    for row, (before, stream, outputs) in enumerate(intact):
        other = intact[row ^ 1][2]
        for index, layer in enumerate(LAYERS):
            for part, paths in {ATTENTION: [attention], MLP: [mlp], BLOCK: [attention, mlp]}.items():
                names = [path.format(layer) for path in paths]
                after = plain.run(TOKENS[row], {name: other[name] for name in names})[0]
                directly = plain.from_stream(stream + sum(other[name] - outputs[name] for name in names))
                expected = {
                    "kl": float((before.exp() * (before - after)).sum()),
                    "log_odds": log_odds(after) - log_odds(before),
                    "direct": log_odds(directly) - log_odds(before),
                }
                assert expected["kl"] > 1e-3
                for name, value in expected.items():
                    ours = found[f"{part}_{name}"][row, index]
                    assert abs(ours - value) <= BOUND * max(1, abs(value)), (row, layer, part, name)


def test_the_mlp_of_a_patched_block_does_not_respond_to_the_patch_of_its_attention():
    """In the last block, nothing reads the changes, so they add up in the stream."""
    found = measured(tiny.tiny_model("llama"))
    np.testing.assert_allclose(found["block_direct"][:, -1], found["block_log_odds"][:, -1], rtol=1e-4, atol=BOUND)
    assert not np.allclose(found["attention_direct"][:, -1], found["attention_log_odds"][:, -1], rtol=1e-2)


def test_a_block_is_nan_if_one_of_its_outputs_is_not_known():
    kinds = ["conv", "full_attention", "conv", "conv", "full_attention"]
    found = measured(tiny.random_model(Lfm2Config(**GROUPED, layer_types=kinds), AutoModel))
    for name in ("kl", "log_odds"):
        assert np.isfinite(found[f"mlp_{name}"]).all()
        assert np.isnan(found[f"attention_{name}"]).all()
        assert np.isnan(found[f"block_{name}"]).all()


def test_a_block_has_no_direct_effect_in_a_stream_that_is_no_sum():
    found = measured(tiny.tiny_model("opt-post-norm"), TABLE[:, :32])  # its output is narrower than its stream
    assert np.isfinite(found["block_kl"]).all()
    assert np.isnan(found["block_direct"]).all()


def test_attention_has_no_direct_effect_in_a_stream_that_later_blocks_multiply():
    found = measured(tiny.tiny_model("gemma4_text"))
    assert np.isfinite(found["attention_kl"]).all()
    assert all(np.isnan(found[f"{part}_direct"]).all() for part in ("attention", "mlp", "block", "head"))
