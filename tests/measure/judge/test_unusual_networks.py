"""Networks whose output, steps or forward pass are unlike those of a plain classifier."""

import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.core.errors import code_of
from orderone.observe.quantities import Quantity

BASE = 32
WIDTHS = [32, 64, 128, 256]
RATES = {"embedding": {"adam": 0, "sgd": 1}, "hidden": {"adam": -1, "sgd": 0}}
RATES["readout"] = {"adam": -1, "sgd": -1}
LR = {"adam": 1e-2, "sgd": 0.1, "muon": 1e-2}


def by_hand(network, law, roles, rates=None):
    """Return `build` of a network scaled by hand; `rates` are powers that are added."""

    def build(width):
        model = network(width)
        growth = width / BASE
        groups = []
        for name, tensor in model.named_parameters():
            if not tensor.requires_grad:
                continue
            exponent = RATES[roles[name]][law] + (rates or {}).get(name, 0)
            groups.append({"params": [tensor], "lr": LR[law] * growth**exponent})
        if law == "adam":
            return model, torch.optim.Adam(groups, eps=1e-12)
        return model, torch.optim.SGD(groups)

    return build


def numbers(classes=4):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(64, 8, generator=generator), torch.arange(64) % classes


def check(build, law="adam", batches=None, **options):
    batches = numbers() if batches is None else batches
    return o1.coord_check(build, WIDTHS, optimizer=law, lr=LR[law], batches=batches, **options)


def smaller_readout(width, layer):
    with torch.no_grad():
        layer.weight.mul_((width / BASE) ** -0.5)


# --- dot products ---------------------------------------------------------------------------------


class Pointer(nn.Module):
    """The output is a product of two activations, without a readout."""

    power = -1.0

    def __init__(self, width: int):
        super().__init__()
        self.power_of_width = (width / BASE) ** self.power / BASE
        self.first = nn.Linear(8, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def logits(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.query(h) @ self.key(h).mT * self.power_of_width

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


class Contrast(Pointer):
    """The same product in a loss that the model computes."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.cross_entropy(self.logits(x), torch.arange(len(x)))


POINTER_ROLES = {"first.weight": "embedding", "query.weight": "hidden", "key.weight": "hidden"}


@pytest.mark.parametrize("network", [Pointer, Contrast])
@pytest.mark.parametrize("law", ["adam", "sgd"])
@pytest.mark.parametrize("power", [-1.5, -1.0, -0.5])
def test_a_dot_product_of_activations_is_divided_by_the_width(network, law, power):
    kind = type("Kind", (network,), {"power": power})
    x, _ = numbers()
    batch = {"x": x} if network is Contrast else (x, torch.arange(64))
    result = check(by_hand(kind, law, POINTER_ROLES), law, batch)
    if power == -1:
        assert result.passed, str(result)
    else:
        assert result.verdict == "FAIL", str(result)
        code = "growing-activations" if power > -1 else "shrinking-output"
        assert code_of(result.causes[0]) == code


def test_a_wrong_initial_size_is_named_before_the_factor_that_it_makes_wrong():
    def network(width):
        model = Pointer(width)
        with torch.no_grad():
            model.query.weight.mul_((width / BASE) ** 0.5)
        return model

    x, _ = numbers()
    result = check(by_hand(network, "adam", POINTER_ROLES), batches=(x, torch.arange(64)))
    assert code_of(result.causes[0]) == "wrong-initial-size"
    assert "query.weight" in result.causes[0]


class Factorization(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.users = nn.Embedding(20, width)
        self.items = nn.Embedding(30, width)

    def forward(self, pairs: Tensor) -> Tensor:
        products = self.users(pairs[:, 0]) * self.items(pairs[:, 1])
        return products.sum(-1) * (4 / self.width)


def ratings():
    generator = torch.Generator().manual_seed(3)
    users = torch.randint(0, 20, (128,), generator=generator)
    items = torch.randint(0, 30, (128,), generator=generator)
    return torch.stack([users, items], 1), torch.randn(128, generator=generator)


@pytest.mark.parametrize("law", ["adam", "sgd"])
def test_tables_whose_dot_product_is_the_output_grow_in_width(law):
    roles = {"users.weight": "embedding", "items.weight": "embedding"}
    assert check(by_hand(Factorization, law, roles), law, ratings()).passed
    wrong = check(by_hand(Factorization, law, roles, {"items.weight": -0.5}), law, ratings())
    assert "items.weight" in wrong.causes[0]
    plan = o1.plan(Factorization(128), base=Factorization(32), optimizer=law, inputs=ratings()[0])
    assert plan["users.weight"].role == "embedding"


# --- steps ----------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width, bias=False)
        self.hidden = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 4, bias=False)
        smaller_readout(width, self.last)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.hidden(torch.relu(self.first(x)))))


PLAIN_ROLES = {"first.weight": "embedding", "hidden.weight": "hidden", "last.weight": "readout"}


def step_of(result):
    (line,) = [line for line in result.judgements if line.quantity == Quantity.STEP]
    return line


def test_steps_that_nothing_clips_are_known_without_noise():
    result = check(by_hand(Plain, "sgd", PLAIN_ROLES), "sgd", seeds=1)
    assert abs(step_of(result).exponent) < 1e-6


def test_gradients_that_hooks_of_tensors_clip_fail_with_sgd():
    def clipped(width):
        model = Plain(width)
        for tensor in model.parameters():
            tensor.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return model

    result = check(by_hand(clipped, "sgd", PLAIN_ROLES), "sgd")
    assert step_of(result).verdict == "FAIL"
    assert code_of(result.causes[0]) == "small-gradients"


@pytest.mark.parametrize(("power", "verdict"), [(-0.5, "PASS"), (-1.0, "FAIL")])
def test_one_muon_for_all_matrices_is_judged_as_muon(power, verdict):
    """A plan would leave the readout to AdamW, whose rate has another power."""

    def build(width):
        model = Plain(width)
        rates = {"last.weight": (width / BASE) ** power}
        groups = []
        for name, tensor in model.named_parameters():
            groups.append({"params": [tensor], "lr": LR["muon"] * rates.get(name, 1.0)})
        return model, torch.optim.Muon(groups, weight_decay=0.0)

    assert check(build, "muon").verdict == verdict


# --- losses ---------------------------------------------------------------------------------------


class LargeStart(Plain):
    """Outputs that start much larger than the targets, and shrink with the width."""

    def forward(self, x: Tensor) -> Tensor:
        return 30 * super().forward(x)


def test_a_gradient_that_follows_a_large_first_output_passes_with_sgd():
    x, _ = numbers()
    targets = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))

    def build(width):
        model, optimizer = by_hand(LargeStart, "sgd", PLAIN_ROLES)(width)
        for group in optimizer.param_groups:
            group["lr"] *= 1e-4
        return model, optimizer

    result = check(build, "sgd", (x, targets))
    assert result.verdict != "FAIL", str(result)


# --- forward passes -------------------------------------------------------------------------------


class Derivative(Plain):
    """A loss with the derivative of the output by the input."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        hidden = torch.tanh(self.hidden(torch.tanh(self.first(x))))
        output = self.last(hidden)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return ((output.sum(-1) - slope.sum(-1) - torch.sin(x[:, 0])) ** 2).mean()


@pytest.mark.parametrize(("power", "verdict"), [(0.0, "PASS"), (-0.5, "FAIL")])
def test_models_that_differentiate_are_checked(power, verdict):
    build = by_hand(Derivative, "adam", PLAIN_ROLES, {"hidden.weight": power})
    result = check(build, batches={"x": numbers()[0]})
    assert result.verdict == verdict, str(result)


class Adapted(nn.Module):
    """A low-rank path of two parameters that no layer holds."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width, bias=False).requires_grad_(False)
        self.hidden = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.A = nn.Parameter(torch.randn(4, width) * width**-0.5)
        self.B = nn.Parameter(torch.zeros(width, 4))
        self.last = nn.Linear(width, 4, bias=False)
        smaller_readout(width, self.last)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(self.hidden(h) + h @ self.A.mT @ self.B.mT))


def test_the_inner_matrix_of_an_adapter_may_start_with_an_output_of_order_one():
    roles = {"A": "readout", "B": "embedding", "last.weight": "readout"}
    result = check(by_hand(Adapted, "adam", roles))
    assert result.passed, str(result)


class LearnedQueries(Plain):
    """Queries are parameters that a layer reads."""

    def __init__(self, width: int):
        super().__init__(width)
        self.queries = nn.Parameter(torch.randn(3, width))
        self.keys = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.relu(self.first(x.unflatten(-1, (8, 1)) * torch.eye(8)))
        scores = self.hidden(self.queries) @ self.keys(tokens).mT * (6 / self.keys.in_features)
        return self.last((scores.softmax(-1) @ tokens).mean(1))


def test_parameters_that_a_layer_reads_are_learned_tokens():
    plan = o1.plan(LearnedQueries(128), base=LearnedQueries(32), inputs=numbers()[0])
    assert plan["queries"].role == "embedding"
    assert plan["hidden.weight"].role == "hidden"


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_with_its_optimizer_is_refused_like_one_to_be_planned():
    def build(width):
        model = torch.jit.script(nn.Sequential(nn.Linear(8, width), nn.Linear(width, 4)))
        return model, torch.optim.Adam(model.parameters())

    with refuses("scripted-model", argument="model"):
        check(build)


# --- biases that start smaller --------------------------------------------------------------------


class BehindGelu(nn.Module):
    """Small activations: torch's biases of size n^-1/2 are most of the later outputs."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.first = nn.Linear(8, width)
        self.last = nn.Linear(width, 4)
        smaller_readout(width, self.last)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.first(x))
        for layer in self.layers:
            x = self.prepared(functional.gelu(layer(x)))
        return self.last(x)

    def prepared(self, x: Tensor) -> Tensor:
        return x


class OfLengthOne(BehindGelu):
    def prepared(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1)


BEHIND_GELU_ROLES = {
    "first.weight": "embedding",
    "first.bias": "embedding",
    "last.weight": "readout",
    "last.bias": "hidden",
    **{f"layers.{i}.weight": "hidden" for i in range(3)},
    **{f"layers.{i}.bias": "embedding" for i in range(3)},
}


def test_biases_that_start_smaller_may_be_most_of_an_input(capsys):
    roles = BEHIND_GELU_ROLES
    result = check(by_hand(BehindGelu, "sgd", roles), "sgd", seeds=2)
    assert result.passed, str(result)
    result.explain("last")
    assert "biases before it that start smaller" in capsys.readouterr().out
    faulty = check(by_hand(OfLengthOne, "sgd", roles), "sgd", seeds=2)
    assert faulty.verdict == "FAIL", str(faulty)
    assert code_of(faulty.causes[0]) == "shrinking-input"


# --- a single number ------------------------------------------------------------------------------


DRAWN = {32: 0.145, 64: -0.057, 128: -0.076, 256: 0.018}  # from +-width^-1/2, as torch does


class ValueHead(nn.Module):
    """A number for each sample, added to all outputs; its bias is a single random number."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.hidden = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        self.last = nn.Linear(width, 4)
        with torch.no_grad():
            self.value.bias.fill_(DRAWN[width])
        smaller_readout(width, self.value)
        smaller_readout(width, self.last)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.value(torch.relu(self.hidden(x))) + self.last(x)


VALUE_ROLES = {
    "first.weight": "embedding",
    "first.bias": "embedding",
    "hidden.weight": "hidden",
    "hidden.bias": "embedding",
    "value.weight": "readout",
    "last.weight": "readout",
    "last.bias": "embedding",
    "value.bias": "embedding",
}


def test_a_single_number_may_be_drawn_at_random():
    x, _ = numbers()
    batch = (x, x[:, :4].roll(1))
    result = check(by_hand(ValueHead, "adam", VALUE_ROLES), "adam", batch, seeds=2)
    assert result.passed, str(result)


def test_layers_before_a_number_that_softmax_cancels_have_no_gradient():
    """Their eps is larger than a gradient of rounding errors, and says nothing."""

    def build(width):
        model, optimizer = by_hand(ValueHead, "adam", VALUE_ROLES)(width)
        for group in optimizer.param_groups:
            group["eps"] = 1e-8
        return model, optimizer

    result = check(build, seeds=2)
    assert not any(line.quantity == Quantity.EPS for line in result.judgements), str(result)
    assert result.passed, str(result)
