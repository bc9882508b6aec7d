"""Plans in TRL, DeepSpeed, unit-scaling and MLflow, which `make test-trainers` installs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.trainer_workers import IDS, ROWS, STEPS, batch
from torch import nn
from transformers import TrainingArguments

import orderone as o1
from orderone.integrations.huggingface import PlanTrainer, PlanTrainerMixin
from orderone.training.sinks import MLflow

pytestmark = pytest.mark.filterwarnings("ignore")  # of these packages


def plan(**options):
    settings: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.1}
    model = planned_models.model("llama")
    return o1.plan(model, base=planned_models.BASE, **(settings | options))


def test_trl(tmp_path):
    """SFTTrainer with the mixin has the losses of `o1.train`."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast, PrinterCallback

    class PlannedSFT(PlanTrainerMixin, trl.SFTTrainer):
        def _get_train_sampler(self, train_dataset=None):
            return torch.utils.data.SequentialSampler(IDS.tolist())  # as `batch` does

    words = {str(number): number for number in range(64)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    arguments = trl.SFTConfig(
        str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        shuffle_dataset=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = PlannedSFT(
        plan=plan(),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"input_ids": IDS.tolist()}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="0", eos_token="0"
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    ours = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu")
    assert losses == pytest.approx(list(ours.losses), abs=1e-4)


def test_deepspeed():
    """Plain parameter groups: losses of `o1.train`, each group with its own learning rate."""
    deepspeed = pytest.importorskip("deepspeed")
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29578"}
    made = plan()
    model = made.apply()
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "optimizer": made.export("deepspeed").data["optimizer"]
        | {"params": {"torch_adam": True, "adam_w_mode": True}},
    }
    groups = made.export("deepspeed").build(model)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=groups, config=config, dist_init_required=None
    )
    losses = []
    for step in range(STEPS):
        loss = engine(**batch(step)).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    ours = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu")
    assert losses == pytest.approx(list(ours.losses), rel=1e-5)
    assert {group["lr"] for group in optimizer.param_groups} == {row.lr for row in made.rows}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_in_the_trainer(stage):
    """PlanTrainer with ZeRO in two processes has the losses of `o1.train` and the learning rates of
    the plan; each process has half of the tensors."""
    pytest.importorskip("deepspeed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "support.zero_trainer", str(stage)]
    folder = Path(__file__).parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)  # of other tests
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    ours = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu")
    assert set(result["rates"]) == {row.lr for row in plan().rows}
    assert result["losses"] == pytest.approx(list(ours.losses), rel=1e-5)
    assert (result["kind"], result["processes"]) == ("DistributedType.DEEPSPEED", 2)
    if stage < 3:
        tensors = planned_models.model("llama").parameters()
        assert result["numbers"] == sum(p.numel() for p in tensors) / 2


SECTIONS = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
}
REFUSED = """
import os, sys
os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "RANK": "0"}
os.environ |= {"LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
from transformers import TrainingArguments
from orderone.integrations.huggingface import PlanTrainer
from support.trainer_workers import plan
config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}}
config |= eval(sys.argv[1])
PlanTrainer(plan=plan(), args=TrainingArguments(sys.argv[2], deepspeed=config, report_to="none"))
"""


@pytest.mark.parametrize("section", SECTIONS)
def test_an_optimizer_or_schedule_of_deepspeed_is_refused(section, tmp_path):
    """The Trainer would use it in place of the plan."""
    pytest.importorskip("deepspeed")
    config = repr({section: SECTIONS[section]})
    command = [sys.executable, "-c", REFUSED, config, str(tmp_path)]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "[setting-of-the-plan]" in done.stderr
    assert repr(section) in done.stderr


@pytest.mark.parametrize("name", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_schedules_of_deepspeed(name):
    """A list of learning rates keeps the ratios, and a number does not; see docs/exports.md."""
    module = pytest.importorskip("deepspeed.runtime.lr_schedules")
    options = {"warmup_num_steps": 3}
    if name != "WarmupLR":
        options["total_num_steps"] = 10

    def spread(**more):
        """Return how far the groups are from a common factor at the worst step."""
        optimizer = plan().optimizer()
        planned = [group["lr"] for group in optimizer.param_groups]
        schedule = getattr(module, name)(optimizer, **options, **more)
        worst = 0.0
        for _ in range(8):
            schedule.step()
            rates = [group["lr"] for group in optimizer.param_groups]
            factors = [rate / start for rate, start in zip(rates, planned, strict=True)]
            worst = max(worst, max(factors) - min(factors))
        return worst

    if name == "WarmupCosineLR":
        assert spread() < 1e-9
        return
    assert spread(warmup_max_lr=[group["lr"] for group in plan().param_groups()]) < 1e-9
    assert spread(warmup_max_lr=3e-3) > 0.1


def test_unit_scaling():
    """u-muP's learning rates at two widths are those of a plan, up to the gauge.

    A matrix W of unit-scaling is multiplied by fan_in^-1/2 (readout: 1/fan_in), which the plan has
    in the weights. Embeddings are excepted: they have width^-1/2 (docs/compare.md).
    """
    uu = pytest.importorskip("unit_scaling")

    class Net(nn.Module):
        def __init__(self, width: int, unit: bool):
            super().__init__()
            kinds = uu if unit else nn
            self.hidden = kinds.Linear(width, width, bias=False)
            last = uu.LinearReadout if unit else nn.Linear
            self.readout = last(width, 8, bias=False)

        def forward(self, x):
            return self.readout(self.hidden(x))

    def effective(width):
        model = Net(width, unit=True)
        gauge = {"hidden.weight": width**-0.5, "readout.weight": 1 / width}
        optimizer = uu.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)
        names = {id(p): name for name, p in model.named_parameters()}
        rates = {}
        for group in optimizer.param_groups:
            name = names[id(group["params"][0])]
            rates[name] = (group["lr"] * gauge[name], group["weight_decay"] / gauge[name])
        return rates

    small, large = effective(16), effective(64)
    lr = {name: rate for name, (rate, _) in small.items()}
    decay = {name: value for name, (_, value) in small.items()}
    made = o1.plan(
        Net(64, unit=False), base=Net(16, unit=False), lr=lr | {"default": 0.1},
        weight_decay=decay | {"default": 0.0}, overrides={"hidden.weight": "hidden"},
    )  # fmt: skip
    for row in made.rows:
        rate, shrinkage = large[row.name]
        assert row.lr == pytest.approx(rate)
        assert row.weight_decay == pytest.approx(shrinkage)


def test_unit_scaling_step_for_step():
    """A small network of unit-scaling has the losses of a plan, in float64.

    At the base the plan has the effective learning rates of unit-scaling. At the target it follows
    from muP, except for embeddings, whose learning rate shrinks as width^-1/2 there.
    """
    uu = pytest.importorskip("unit_scaling")
    base, target, tokens, classes = 16, 64, 12, 8

    class Net(nn.Module):
        def __init__(self, width: int, unit: bool):
            super().__init__()
            kinds = uu if unit else nn
            last = uu.LinearReadout if unit else nn.Linear
            self.embedding = kinds.Embedding(tokens, width)
            self.first = kinds.Linear(width, width, bias=False)
            self.second = kinds.Linear(width, width, bias=False)
            self.readout = last(width, classes, bias=False)
            self.act = uu.GELU()
            self.double()

        def forward(self, x):
            return self.readout(self.act(self.second(self.act(self.first(self.embedding(x))))))

    def gauge(name: str, width: int) -> float:
        if name.startswith("embedding"):
            return 1.0
        return 1 / width if name.startswith("readout") else width**-0.5

    def rates(width: int) -> tuple[nn.Module, Any, dict[str, float], dict[str, float]]:
        torch.manual_seed(0)
        model = Net(width, unit=True)
        options: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.01, "eps": 1e-30}
        optimizer = uu.optim.AdamW(model.parameters(), **options)
        names = {id(p): name for name, p in model.named_parameters()}
        lr: dict[str, float] = {}
        decay: dict[str, float] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                factor = gauge(names[id(p)], width)
                lr[names[id(p)]] = group["lr"] * factor
                decay[names[id(p)]] = group["weight_decay"] / factor
        return model, optimizer, lr, decay

    def losses(model: nn.Module, optimizer: Any) -> list[float]:
        values: list[float] = []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            x, y = (torch.randint(limit, (32,), generator=generator) for limit in (tokens, classes))
            loss = nn.functional.cross_entropy(model(x), y % (1 + x % 3))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    _, _, lr, decay = rates(base)
    shrinks = (target / base) ** -0.5
    lr["embedding.weight"] *= shrinks
    decay["embedding.weight"] /= shrinks
    theirs, optimizer, _, _ = rates(target)
    made = o1.plan(
        Net(target, unit=False), base=Net(base, unit=False), eps=1e-30,
        lr=lr | {"default": 0.05}, weight_decay=decay | {"default": 0.0},
    )  # fmt: skip
    model = made.apply()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(theirs.get_parameter(name) * gauge(name, target))
    mine = losses(model, made.optimizer())
    assert mine == pytest.approx(losses(theirs, optimizer), rel=1e-9)
    assert mine[-1] < mine[0] - 0.1


def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    run = o1.train(
        plan(),
        batch,
        4,
        device="cpu",
        report_every=2,
        sizes_every=2,
        sinks=MLflow(run_name="small"),
    )
    client = mlflow.MlflowClient()
    (saved,) = client.search_runs(["0"])
    assert saved.info.run_name == "small"
    history = client.get_metric_history(saved.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [
        (2, run.losses[1]),
        (4, run.losses[3]),
    ]
    assert "sizes/model.layers.0.mlp" in saved.data.metrics


def test_adapters_of_peft(tmp_path):
    """A plan of a model with adapters trains them; adapters that are added later are refused."""
    peft = pytest.importorskip("peft")

    def adapted(rank):
        options = peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"])
        return peft.get_peft_model(planned_models.model("llama"), options)

    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    made = o1.plan(adapted(8), base=adapted(4), lr=1e-3)
    optimizer = PlanTrainer(plan=made, args=arguments).create_optimizer()
    made.check(optimizer)
    assert {row.trained for row in made.rows} == {True, False}
    later = plan()
    wrapped = peft.get_peft_model(later.apply(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    with refuses("tensors-changed", argument="model"):
        PlanTrainer(plan=later, model=wrapped, args=arguments)
