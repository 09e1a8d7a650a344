"""Descriptions of the dimensions of stored arrays."""

DIMENSIONS = {
    "sample": "Index of the prompt in its set.",
    "position": "Token position counted from the end (-1 is the last token), or the name of a position.",
    "layer": "0-based index of the block.",
    "layer_other": "0-based index of the block that `layer` is compared with.",
    "d_model": "Feature of the residual stream.",
    "shard": "Index of the shard in its set.",
    "unit": "Hidden unit of the MLP.",
    "choice": "Index among the experts that a token uses in a layer, in ascending order.",
    "expert": "Expert of a layer, among those that its router selects from.",
    "expert_or_shared": "Expert of a layer: the index of one that the router selects from, or `shared` for the expert "
    "that all tokens use.",
    "expert_or_shared_other": "Expert that `expert_or_shared` is compared with.",
    "set": "Prompt set.",
    "contrast": "Contrast of two prompt sets.",
    "contrast_other": "Contrast that `contrast` is compared with.",
    "estimate": "Value of a statistic, or an end of its 95 % interval (low, high) or of its simultaneous 95 % band "
    "over all sites and layers (band_low, band_high).",
    "scored_by": "What scores prompts: ridge regression, the difference of means on the sphere, or the norm.",
    "null": "Mean and standard deviation (sd) of a statistic with permuted labels or of controls, and its tests: z is "
    "the statistic minus the mean, over sd; p is the share of draws, the statistic itself included, that are as large; "
    "p_family is the share of draws whose largest z over all places is as large as this z; the statistic is above "
    "critical where p_family is at most 0.05; p_low_family is p_family for small values. Or the value of a Gaussian: "
    "standard_gaussian, fitted_gaussian.",
    "tested": "Statistic of a contrast that is tested with permuted labels.",
    "held_out": "Statistic of held-out prompts: auroc and paired_accuracy by difference of means, ridge_auroc by ridge "
    "regression.",
    "measure": "What is measured: auroc, accuracy or paired_accuracy (share of pairs in the right order), or the AUROC "
    "minus that of token counts (auroc_beyond_words) or of the difference of means (auroc_beyond_means); kl or "
    "log_odds.",
    "probe": "Probe of held-out prompts: difference of means, linear discriminant (lda), or logistic regression.",
    "fit": "Number of a probe: cosine of its direction with that of the difference of means; penalty (shrinkage of "
    "lda, from 0 to 1, or ridge of logistic); length and offset of its scores.",
    "classifier": "Classifier of held-out prompts: difference of means, or ridge regression.",
    "part": "Kind of the parts of the stream: attention heads, or MLPs.",
    "sublayer": "Attention, MLP, or the whole block.",
    "output": "Stream after a sublayer (output), or what the sublayer adds to the stream (branch).",
    "space": "Scale of the activations: raw, scaled to norm √d_model (sphere), or with each feature scaled to "
    "variance 1 (standardised).",
    "centre": "Centre of a set: its mean or its geometric median.",
    "map": "Map of the input of a sublayer to its output.",
    "quantile": "Probability of the quantile.",
    "summary": "Mean, standard deviation (n-1), minimum or maximum over prompts.",
    "quantity": "Norm of a vector, or its square.",
    "vector_pair": "Two vectors with a cosine: the steps of a block and the next block (successive_steps), or a step "
    "and the state at which it starts.",
    "path": "Path through all blocks (whole), or the path that ends before the last block (before_last).",
    "path_summary": "Mean or standard deviation (n-1) of a ratio over prompts, or its value for steps or arcs of the "
    "same lengths at right angles (at_right_angles).",
    "term": "Variance of a step (step_variance), or twice its covariance with the state at which it starts.",
    "point": "State of a block: its input (pre), the stream between attention and MLP (mid), its output (post).",
    "site": "Site in the block, such as resid_pre.",
    "circuit": "Bilinear map of a head: qk is s·W_Q R W_Kᵀ, ov is W_V W_O; with multi-head latent attention, rotary is "
    "s·W_QR R(δ) W_KRᵀ.",
    "offset": "Query position minus key position, for rotary positions; ov has offset 0 only.",
    "centring": "W_U minus its mean over the vocabulary (centred), or as stored (uncentred).",
    "head": "Query head.",
    "d_head": "Component of a head's output before W_O.",
    "head_other": "Query head of layer_other.",
    "rank": "Index of the singular value; 0 is the largest.",
    "vector": "Index of the singular vector; 0 belongs to the largest singular value.",
    "side": "Side of a circuit that is compared with the direction: qk_query, qk_key and ov_read "
    "read the stream, ov_write writes it.",
    "projection": "Projection of the head: query or key.",
    "composition": "Input of the later head: q, k or v.",
    "prompt_side": "Side of the contrast: positive or negative; for interventions, the side whose prompts are changed.",
    "intervention": "Change of the last token's state: patch, remove or add.",
    "control": "Kind of the control: permuted labels or nouns, random directions or matrices, matched directions, or "
    "the words or the length of the prompts.",
    "check": "Compared forward passes: unchanged columns and the plain one (intact), or interventions that cost one "
    "token and the same in passes of all tokens (route).",
    "dose": "Factor on the difference of the means (positive minus negative) that is added to the state.",
    "n_prompts": "Number of prompts in each set of another sample.",
    "norm": "Norm layer, written `0.attention`, `0.mlp`, …, `final`.",
    "stage": "Input of the norm layer (before), or its output before scale and bias (after).",
    "norm_other": "Norm layer that `norm` is compared with.",
    "norm_kind": "Branch that the norm layer precedes (attention, mlp, final), or follows "
    "(attention_output, mlp_output).",
    "norm_layer": "0-based index of the norm's block; -1 for the final norm.",
    "matrices": "Matrices of the model, or random ones with the same row lengths.",
    "form": "Matrices as stored, or with the scales of norms folded into them (folded).",
    "writing_matrix": "Matrix that writes to the stream: o is W_O of all heads, down is W_down of all experts.",
    "reading_matrix": "Matrix that reads the stream: q, k, v of all heads, gate and up of all experts.",
    "mlp_matrix": "Matrix of one expert: down writes to the stream, gate and up read it.",
}
