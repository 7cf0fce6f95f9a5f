"""Words that classify a question, in the notation of `Specialist.names`. They match whole words.

A specialist defines the names of its own domain. This module has the words that all domains share.
"""

from __future__ import annotations


def _terms(text: str) -> tuple[str, ...]:
    return tuple(term.strip() for term in text.replace("\n", " ").split(",") if term.strip())


MEASURING = _terms("""
    profile, profiling, profiled, profiler, benchmark, benchmarking, measure, measuring, measurement, nsys, ncu,
    nsight, time it, trace, find the bottleneck, find out where, find the hot*, where does the time go, where the time
    goes, where is the time, what dominates, kineto
""")
"""Words that ask for a measurement, not for a change."""

SPEED = _terms("""
    slow, late, lag, lagging, slower, slowest, slowly, slows, slowdown, sluggish, crawl, crawling, fast, faster,
    fastest, speed, speedup, speed up, quick, quicker, quickly, accelerate, accelerating, acceleration, performance,
    performant, perf, latency, throughput, bottleneck, hot spot, hotspot, hottest, hot kernel, time go, time goes,
    time is spent, time spent, spend, spending, spends, efficient, efficiency, inefficient, utilization, utilisation,
    utilized, utilised, underutilized, underutilised, utilize, idle, idling, stall, stalled, overhead, memory bound,
    compute bound, latency bound, bandwidth bound, host bound, cpu bound, bound, mfu, flops, tflops, roofline, speed
    of light, sol, regression, regressed, optimize, optimizing, optimized, optimise, optimising, optimised,
    optimization, optimisation, tune, tuning, tuned, autotune, autotuning, improve, improving, tokens per second,
    tokens s, samples per second, images per second, step time, iteration time, it s, ms, µs, milliseconds,
    microseconds, limits, limiting, limited by, starve*, waits, waiting, takes, took, wall time, gpu time, occupancy,
    spill, spills, spilling, warp stall*, bank conflict, peak bandwidth, percent of peak, of peak, headroom, costs,
    wasted, wasting, gap, cheaper, jitter, tail latency, p99, ttft, tpot, time to first token, scales, scaling
""")
"""Words that ask about time or efficiency."""

AMOUNT = _terms("""
    time, times, most of, most time, how much, how long, breakdown, break down, dominate, dominates, eat, eats,
    eating, consume, consumes, burns, share of, problem, expensive, heavy, heaviest, longest, biggest, largest, worst,
    top ten, top 10, bandwidth, memory, gb s, tb s, duration, runtime, run time, saturate, saturates, saturated, busy,
    delay, delays, pause, pauses, hogs, crawls, drags, bubble, percent, tensor cores, better, cost, what happens,
    worth, pays off, pay off, starving, keep up, keeps up, maxed out, long, longer
""")
"""Words about an amount. They are about speed only together with words of GPUs and models."""

TECHNIQUE = _terms("""
    flashattention, flash attention, flash attn, sdpa, scaled dot product attention, kernel fusion, operator fusion,
    op fusion, layer fusion, fusion, fuse, fusing, fused, memory pooling, memory pool, checkpointing, activation
    checkpointing, gradient checkpointing, recompute, recomputation, offload*, mixed precision, lower precision, half
    precision, autocast, amp, bf16, fp16, fp8, fp4, tf32, bfloat16, float16, nvfp4, mxfp8, quantize, quantise,
    quantization, quantisation, torch compile, torchinductor, inductor, channels last, pinned memory, pin memory, non
    blocking, graph break, prefetch*, dataloader, data loader, data loading, num workers, batch size, batching,
    continuous batching, kv cache, paged attention, speculative decoding, peak memory, memory usage, memory footprint,
    memory reduction, out of memory, oom, caching allocator, fragmentation, host sync, synchronization,
    synchronisation, synchronizes, device to host, host to device, h2d, d2h, memcpy, copies, gradient accumulation,
    vectorize, coalesced, coalescing, async copy
""")
"""Techniques for kernels or memory. For these, the profiling specialist measures first."""

GPU = _terms("""
    gpu, gpus, cuda, torch, pytorch, tensor, tensors, kernel, kernels, attention, transformer, llm, llms, diffusion,
    unet, vllm, sglang, tensorrt, decode, decoding, generation, prefill, inference, forward pass, backward pass,
    backward, forward, optimizer step, train py, training loop, training step, training script, training run, training
    job, training, fine tuning, finetuning, finetune, pretraining, train step, train loop, training throughput, epoch,
    step, steps, iteration, batch, batches, sm, sms, hbm, l2, dram, vram, streaming multiprocessor, layer, layers,
    gradient, gradients, activations, logits, token, embedding, moe, experts, resnet, bert, llama, gpt, vit, mlp,
    conv, convolution, element wise, elementwise, dataloader, cublas, cudnn, cudamemcpy*, nsys, ncu, nsight, mfu,
    tflops, roofline, tensor core, warp, warps, tile size, tile sizes, occupancy, serving engine, model, models,
    hopper, blackwell, ampere, dataparallel, bf16, fp16, fp8, torch compile, memcpy, h2d, d2h, kv cache, device, jax,
    cupy, numba, prompt, weights, adam, stable diffusion, whisper, qwen, deepseek, mixtral, gemma, mamba, yolo, memory
    bound, compute bound, latency bound, bandwidth bound, host bound, cpu bound, encoder,
    decoder
""")
"""Words about GPUs and models. Together with a word about speed they make a question for Tilewright."""

PROGRAM = _terms("""
    my code, this code, the code, our code, my program, this program, the program, our program, my script, this
    script, the script, my workload, the workload, our workload, this workload, this file, my run, this job, my job,
    main py, serve py, trace, this function
""")
"""Words for the whole program, as the subject of a question that names no other subject."""

PRONOUN = _terms("it, this, here, that")
"""Pronouns, as the subject of a short question."""
SHORT = 6
"""The most words of a question whose subject is a pronoun."""

KERNEL = _terms("""
    kernel, kernels, op, ops, operator, operators
""")
OPERATION = _terms("""
    softmax, gemm, gemv, matmul, matrix multiplication, matrix multiply, matrix product, rmsnorm, rms norm, layernorm,
    layer norm, groupnorm, group norm, batchnorm, norm, normalization, silu, silu mul, swiglu, geglu, gelu, relu,
    tanh, sigmoid, dropout, rope, rotary, cross entropy, logsumexp, attention, fmha, flash attention, reduction,
    cumsum, scan, prefix sum, elementwise, element wise, top k, topk, argmax, histogram, transpose, dequantize,
    dequantization, quantize, grouped gemm, dual gemm, moe, convolution, conv, bias, residual, sum, max, all reduce,
    embedding, sort, copy, add
""")
"""Operations for which a kernel can be written."""

WRITING = _terms("""
    write, writes, writing, generate, generates, generating, create, creating, implement, implementing, build a, build
    an, build me, make me, code up, author, develop, new kernel, i need a, i want a, need a, want a, produce, from
    scratch, draft, design
""")
"""Words that ask for something new."""

CONVERTING = _terms("""
    convert, converts, converting, conversion, rewrite, rewriting, port, porting, ported, translate, translating,
    translation, migrate, migrating, migration, move, moving, transform, turn, reimplement, re implement, replace,
    replacing, switch, switching, redo, transfer, lower, retarget, bring, recast
""")
"""Words that ask to convert existing code into another language."""

USING = _terms("use, using, do it, do this, try, go with, stay with")
"""Words before the means that the user wants."""

ACTING = _terms("""
    apply, applying, enable, enabling, use, using, add, set, configure, capture, capturing, analyze, analyse, reduce,
    reducing, cut, improve, look at, look into, inspect, check, try, overlap, overlapping, hide, run, debug, fix,
    repair, remove, eliminate, get rid, shard, split, compare, wrap, replay, minimize, minimise, increase, raise,
    lower, avoid, save, choose, pick, find, help, target, compile, adapt, extend, consider, get, make, keep, decide,
    change, refactor, do it, do this, record, recording, put, putting
""")
"""Words that ask for any other work on code."""

PAPERWORK = _terms("""
    docstring, docstrings, readme, blog, blog post, unit test, unit tests, pytest, type hints, type annotations,
    commit message, changelog, slides, presentation, tutorial, lecture, poem, song, haiku, essay, email, e mail,
    tweet, story, joke, license, licence, logo, cv, resume, cover letter, job description, interview, summarize,
    summarise, summary of, paper about, typo, rename, documentation, comments, pip install, history of, release notes,
    news
""")
"""Words for work on documentation, tests or packages, which is not about performance."""

ASKING = _terms("""
    what is, what s, what are, who, explain, define, definition, describe, tell me about, introduce, introduction,
    teach me, learn, when was, difference between, meaning of, overview of
""")
"""Words that ask for an explanation. Such a question is about performance only if it has a word about speed."""

FOREIGN = _terms("""
    kubernetes, k8s, kubectl, helm, terraform, ansible, grafana, prometheus, kibana, elasticsearch, jenkins, rust,
    cargo, borrow checker, golang, goroutine, java, javac, spring boot, kotlin, swift, ruby, rails, php, laravel,
    scala, haskell, perl, javascript, typescript, node js, npm, webpack, react, vue, angular, svelte, next js, nextjs,
    nuxt, html, css, tailwind, frontend, front end developer, browser, website, web site, webpage, web page, web app,
    web server, seo, wordpress, django, flask, fastapi, orm, rest api, graphql, grpc, protobuf, proto, kafka,
    rabbitmq, celery, redis, sql, mysql, postgres, postgresql, sqlite, mongodb, database, databases, snowflake,
    bigquery, excel, spreadsheet, pandas, tableau, power bi, aws lambda, lambda function, s3, nginx, apache, oauth,
    jwt, login, linux kernel, kernel module, kernel panic, kernel driver, popcorn, device driver, jupyter, kernel
    trick, svm, gaming, game, unity, unreal, minecraft, blender, photoshop, android, ios, iphone, phone, laptop,
    arduino, raspberry, printer, wifi, router, vpn, dns, ci, github actions, gitlab, git, regex, bash, shell, vim,
    vscode, chess, crypto, blockchain, bitcoin, ethereum, raft, paxos, consensus, microservice, microservices, train
    ticket, ticket, tickets, booking, railway, train station, train schedule, train timetable, flight booking, hotel,
    recipe, cooking, cuisine, restaurant, reactor, bathroom, kitchen, floor, roof tile, garden, cute cat, kitten, dog,
    puppy, baby, wedding, birthday, moon, neptune, planet, mermaid, greek, god, poseidon, mythology, triton server,
    triton inference, marathon, gym, workout, fitness, diet, employees, sales, marketing, business, economy, stock
    market, linkedin, facebook, instagram, profile picture, profile page, user profile, movie, video game, music,
    guitar, football, weather, holiday, vacation, school, exam, car, bike, truck, jewelry, invoice, tax, knowledge
    graph, graph database, neo4j, bar chart, pie chart, chart, plot, matplotlib, latex, buy, price, dollar, shopping,
    customer, customers, contract, lawyer, doctor, medicine, novel, outfit, dress, hairstyle
""")
"""Words of other subjects. With them, only an explicit question about a kernel or about collectives counts."""

QUALITY = _terms("""
    accuracy, overfit, overfitting, underfitting, hyperparameter*, learning rate, validation loss, test set, f1 score,
    dataset, labels, data augmentation, early stopping, convergence, diverge, diverges, loss curve, classifier
    accuracy, hallucinat*
""")
"""Words about what a model learns. With them, "performance" does not mean speed."""

STOP = _terms("""
    instead of, rather than, without, avoid, avoiding, except, other than, no, never, do not use, do not want, do not
    need, anything but, leave out, never mind, forget about, can not use
""")
"""Words before a name that exclude it."""
NOT = "not"
STATING = ("is", "are", "was", "were", "does", "did", "has", "have", "had", "would", "why", "could")
"""Words before ``not`` that make a statement and exclude nothing: "my model does not use CUDA graphs"."""
STATED = ("permitted", "allowed", "supported", "possible", "implemented")
"""Words after ``not`` that make a statement, too: "operation not permitted when stream is capturing"."""
EXCLUDED_AFTER = _terms("""
    is not an option, is not allowed, is not available, is not supported, is not possible, is forbidden, is ruled out,
    is out of the question, is no option, not allowed, is not installed
""")
REFERENCE = _terms("""
    than, like, as fast as, as good as, similar to, based on, equivalent to, against, versus, vs, beat, beats, match,
    matches, catch up with, inspired by, called from, calls, relative to
""")
"""Words before a name that is only a comparison."""
COMPARING = _terms("compare, comparing, comparison")
"""Words that ask for a comparison. Then both names count."""
WHOSE = _terms("""
    my, our, this, these, why, py, here, fastest, best, hottest, slowest, longest, i, we, us
""")
"""Words that show that a question is about an existing thing, such as a program, and not about a word's meaning."""
INTO = ("to", "into", "in", "as", "using", "with", "by", "onto", "for", "use")
"""Words before the target language of a conversion."""
OWNING = ("my", "our", "the", "this", "that", "these", "those", "existing", "current", "an existing", "have a", "have",
          "your", "exists", "already", "his", "her", "their")  # fmt: skip
"""Words before an existing kernel."""
NOTHING_YET = _terms("""
    from scratch, no kernel, no triton kernel, no existing kernel, does not exist, not written yet, new kernel, brand
    new
""")
EXISTS = _terms("""
    kernel exists, already exists, already have, existing kernel, existing triton, exists already
""")
