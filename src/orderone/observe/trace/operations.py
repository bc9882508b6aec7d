"""Tables of aten operations by name, for the recorder."""

# Operands of each contraction (bias, left, right), and the dimensions of left and right that are
# summed.
CONTRACTIONS: dict[str, tuple[str | None, str, str, int, int]] = {
    "mm": (None, "self", "mat2", -1, -2),
    "addmm": ("self", "mat1", "mat2", -1, -2),
    "bmm": (None, "self", "mat2", -1, -2),
    "baddbmm": ("self", "batch1", "batch2", -1, -2),
    "matmul": (None, "self", "other", -1, -2),
    "mv": (None, "self", "vec", -1, -1),
    "addmv": ("self", "mat", "vec", -1, -1),
    "dot": (None, "self", "tensor", -1, -1),
    "linear": ("bias", "input", "weight", -1, -1),
    "_grouped_mm": ("bias", "self", "mat2", -1, -2),
}
LOOKUPS = {
    *("embedding", "_embedding_bag", "_embedding_bag_forward_only"),
    *("index", "index_select", "gather", "take"),
}
SOFTMAXES = {"_softmax", "_safe_softmax", "softmax"}
ADDITIONS = {"add", "sub", "rsub"}
# Functions with a scale of their own: f(c x) is no power of c times f(x).
BENDS = {
    *("exp", "expm1", "sigmoid", "tanh", "silu", "gelu", "softplus", "elu", "mish", "erf"),
    *("sin", "cos", "log_sigmoid_forward", "hardtanh", "hardsigmoid", "hardswish", "_log_softmax"),
}
ROOTS = {"rsqrt", "sqrt", "linalg_vector_norm", "norm", "std"}
OVERWRITES = {"copy", "fill", "zero"}
# Operations that read the shape of a tensor, and none of its entries.
READ_NO_ENTRY = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
# Operations that put entries of several tensors side by side, or in place of each other.
JOINS = {
    *("cat", "stack", "where", "index_put", "_index_put_impl", "index_copy", "scatter"),
    *("masked_scatter", "slice_scatter", "select_scatter", "copy"),
}
# Operations that are linear in their floating operands, or select entries of them. Views have no
# entry: they share memory with their operand.
LINEAR = {
    *("clone", "_to_copy", "copy", "cat", "stack", "repeat", "repeat_interleave"),
    "nan_to_num",
    *("neg", "rsub", "sum", "mean", "cumsum", "native_dropout"),
    *("where", "masked_fill", "index", "index_select", "gather", "take", "roll", "flip"),
    *("tril", "triu"),
    *("index_add", "index_put", "_index_put_impl", "index_copy", "scatter", "scatter_add"),
    *("masked_scatter", "slice_scatter", "select_scatter", "constant_pad_nd"),
    *("im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "avg_pool1d", "avg_pool2d"),
    *("avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_nearest2d"),
    *("upsample_bilinear2d", "upsample_bicubic2d"),
}
# Operations that move entries of their operands to other places. Views have no entry here either.
MOVES = {
    *("clone", "cat", "stack", "repeat", "repeat_interleave", "roll", "flip"),
    *("index", "index_select", "gather", "where", "constant_pad_nd"),
}
