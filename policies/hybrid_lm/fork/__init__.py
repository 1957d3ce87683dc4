"""Forked decisions: many questions put to one state in one pass, each answered as if alone.

    from flashrt_policies.hybrid_lm.fork.engine import ForkEngine
    from flashrt_policies.hybrid_lm.fork.request import Branch, Request

    engine = ForkEngine(ctx, config, weights, registry=registry)     # or ForkEngine.of(lm)
    round_ = [Request(state_tokens, [Branch(question_tokens, options=[yes, no]), ...]), ...]
    answers = engine.round(round_)          # one list per request, one `Answer` per branch
    answers[0][0].logits                    # float32 [options], what the prompt alone would give
    answers[0][0].probabilities, answers[0][0].choice
    engine.statistics                       # rounds, replays, uncaptured, resumed tokens, ...

The modules, in the order of a round: `request` (what is asked), `slots` (where states stand and
their checkpoints), `plan` (a round as one flat stream), `layers` (the model over the stream),
`engine` (graphs and bookkeeping). The kernels are `flashrt_policies.kernels.fork_*`.
"""
