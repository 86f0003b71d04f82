"""What the laboratory can do, how real each thing is, and the test that shows it: one table, which the book prints.

Tests hold it to the code: every symbol imports, every test exists.

    >>> CAPABILITIES[0].symbol
    'labcore.model.llama:LlamaModel'
"""

from __future__ import annotations

from dataclasses import dataclass

IMPLEMENTED = "Implemented"  # the real thing, run here
MODELLED = "Modelled"  # a real algorithm on a simulated substrate
REFERENCE = "Reference"  # real code whose machine is absent here: written for it, not run on it
LEVELS = (IMPLEMENTED, MODELLED, REFERENCE)


@dataclass(frozen=True, slots=True)
class Capability:
    """One row."""

    area: str
    name: str
    level: str
    symbol: str  # module:name
    test: str  # as pytest takes it


def _row(area: str, name: str, level: str, symbol: str, test: str) -> Capability:
    return Capability(area, name, level, f"labcore.{symbol}", f"tests/{test}")


_MODEL, _KERNELS, _MEMORY, _ENGINE, _LAB = "Model", "Kernels", "Memory", "Engine", "Laboratory"

CAPABILITIES = (
    _row(_MODEL, "Llama decoder (RMSNorm, RoPE, grouped-query attention, SwiGLU)", IMPLEMENTED,
         "model.llama:LlamaModel", "model/test_llama.py::test_the_lab_model_equals_transformers_on_the_same_weights"),
    _row(_MODEL, "SmolLM2-135M, a real model, from its GGUF file", IMPLEMENTED,
         "model.weights:load_model", "model/test_smollm2.py::test_logits_match_transformers"),
    _row(_MODEL, "GGUF reader; damaged files are refused by name", IMPLEMENTED,
         "loaders.gguf:read_gguf", "loaders/test_gguf_damage.py::test_every_truncation"),
    _row(_MODEL, "Llama, Mistral, Qwen2 and Qwen3 from safetensors, sharded or not", IMPLEMENTED,
         "loaders.llama_safetensors:load_llama_folder", "model/test_checkpoints.py::test_logits_are_those_of_transformers"),
    _row(_MODEL, "Mixture of experts: Mixtral, Qwen2-MoE and Qwen3-MoE from safetensors", IMPLEMENTED,
         "model.moe:experts_forward", "model/test_moe.py::test_logits_are_those_of_transformers"),
    _row(_MODEL, "Experts without a capacity: no batch mate changes an answer", IMPLEMENTED,
         "model.moe:group_by_expert", "model/test_moe.py::test_a_token_does_not_see_its_batch_mates"),
    _row(_MODEL, "Load, balance and cost of experts", IMPLEMENTED,
         "model.expert_load:RoutingLog", "model/test_expert_load.py::test_a_log_counts_every_token_in_every_layer"),
    _row(_MODEL, "Linear and Llama 3 rope scaling", IMPLEMENTED,
         "core.config:Llama3Rope", "model/test_llama.py::test_rope_tables_follow_transformers"),
    _row(_MODEL, "Conversion between GGUF and safetensors, bit for bit", IMPLEMENTED,
         "loaders.gguf_writer:write_gguf", "loaders/test_convert.py::test_gguf_to_safetensors_to_gguf_is_the_same_file"),
    _row(_MODEL, "Chat templates, sandboxed", IMPLEMENTED,
         "loaders.chat:render_chat", "loaders/test_chat.py::test_the_same_prompts_as_transformers"),
    _row(_MODEL, "tokenizer.json", IMPLEMENTED,
         "loaders.tokenizer_json:read_tokenizer_json",
         "loaders/test_tokenizer_json.py::test_the_same_ids_and_texts_as_transformers"),
    _row(_MODEL, "Byte-level BPE tokenizer", IMPLEMENTED,
         "loaders.bpe:BPETokenizer", "loaders/test_bpe.py::test_any_text"),
    _row(_MODEL, "Streaming in whole characters", IMPLEMENTED,
         "loaders.tokenizer:IncrementalDecoder", "loaders/test_tokenizer.py::test_stream_of_any_bytes"),
    _row(_MODEL, "Block formats Q4_1 and Q8_0", IMPLEMENTED,
         "quant.gguf_blocks:dequantize", "quant/test_gguf_blocks.py::test_random_bytes"),
    _row(_MODEL, "Quantizers to int8, Q8_0, Q4_0 and Q4_1, the last three with gguf's bytes", IMPLEMENTED,
         "quant.quantize:quantize", "quant/test_quantize.py::test_the_bytes_are_gguf_s"),
    _row(_MODEL, "A model quantized to a file that others read", IMPLEMENTED,
         "loaders.gguf_writer:write_gguf", "loaders/test_quantize.py::test_transformers_loads_the_gguf_and_computes_the_same"),
    _row(_MODEL, "Fetching a model, verified and atomic", IMPLEMENTED,
         "loaders.zoo:fetch", "loaders/test_zoo.py::test_killed"),
    _row(_KERNELS, "Reference operators in float64", IMPLEMENTED,
         "kernels.reference:ReferenceBackend", "kernels/test_operators.py::test_the_oracle_agrees_with_torch"),
    _row(_KERNELS, "Operators in C++ (plain, AVX2, AVX-512), threaded", IMPLEMENTED,
         "kernels.native:NativeBackend", "kernels/test_operators.py::test_operator_matches_the_oracle"),
    _row(_KERNELS, "Batch invariance: a row's bits do not depend on its batch", IMPLEMENTED,
         "kernels.native:NativeBackend", "kernels/test_batch_invariance.py::test_rows_are_independent_of_their_batch"),
    _row(_KERNELS, "Products with packed block weights", IMPLEMENTED,
         "kernels.native:NativeBackend", "kernels/test_packed_products.py::test_products_are_the_integer_reference"),
    _row(_KERNELS, "A decoder step in one native call, with the operators' bits", IMPLEMENTED,
         "kernels.native:NativeBackend", "model/test_batch_invariance.py::test_one_call_is_the_operators_one_by_one"),
    _row(_KERNELS, "Batch invariance of the whole model: f32, int8, Q8_0, Q4_1, float32 and int8 KV", IMPLEMENTED,
         "model.llama:LlamaModel", "model/test_batch_invariance.py::test_logits_do_not_see_the_company"),
    _row(_KERNELS, "Triton kernels, interpreted on a CPU and compiled for sm_90; measured on an H200", IMPLEMENTED,
         "kernels.triton_kernels.backend:TritonBackend",
         "kernels/test_triton_kernels.py::test_every_kernel_in_the_interpreter"),
    _row(_KERNELS, "The arithmetic of integer products, to the bit", IMPLEMENTED,
         "kernels.integer_reference:linear_blocks",
         "kernels/test_integer_reference.py::test_block_products_are_the_documented_chain"),
    _row(_KERNELS, "Keys and values in int8", IMPLEMENTED,
         "kernels.integer_reference:quantize_kv", "kernels/test_int8_kv.py::test_scheduling_changes_no_bit_with_int8_kv_either"),
    _row(_KERNELS, "Paged attention", IMPLEMENTED,
         "kernels.native:NativeBackend", "kernels/test_operators.py::test_paged_attention_matches_the_oracle"),
    _row(_KERNELS, "Three doors to them (nanobind, pybind11, ctypes), the same bits and the same refusals", IMPLEMENTED,
         "kernels.build:DOORS", "kernels/test_doors.py::test_every_door_gives_the_same_bits"),
    _row(_KERNELS, "Operators in torch", IMPLEMENTED,
         "kernels.torch_backend:TorchBackend", "kernels/test_operators.py::test_operator_matches_the_oracle"),
    _row(_KERNELS, "Binaries of another machine are named and deleted", IMPLEMENTED,
         "kernels.build:mismatch", "kernels/test_build.py::test_the_artefact_that_lied"),
    _row(_MEMORY, "Block allocator with reference counts", IMPLEMENTED,
         "kv.block_allocator:BlockAllocator", "kv/test_block_allocator.py::TestAllocatorMachine"),
    _row(_MEMORY, "Paged KV pool and block tables", IMPLEMENTED,
         "kv.paged_cache:PagedCache", "kv/test_paged_cache.py::test_grow_takes_all_or_nothing"),
    _row(_MEMORY, "Copy-on-write for several answers to one prompt", IMPLEMENTED,
         "kv.paged_cache:PagedCache", "engine/test_memory_hazards.py::test_a_fork_copies_all_of_a_block_before_it_writes"),
    _row(_MEMORY, "Prefix cache as a radix tree", IMPLEMENTED,
         "kv.radix_cache:RadixCache", "kv/test_radix_cache.py::TestRadixMachine"),
    _row(_MEMORY, "Prefix cache as chained hashes", IMPLEMENTED,
         "kv.hash_cache:HashCache", "kv/test_hash_cache.py::TestHashMachine"),
    _row(_MEMORY, "A report of who holds which block", IMPLEMENTED,
         "debug.invariants:report", "debug/test_invariants.py::test_a_lost_block_and_a_borrowed_one_are_told"),
    _row(_ENGINE, "Priorities, longest-prefix-first admission, deadlines", IMPLEMENTED,
         "engine.policies:POLICIES", "engine/test_scheduler_machine.py::TestSchedulerMachine"),
    _row(_ENGINE, "Caches, forks, preemption, aborts in any mixture: difference 0.0", IMPLEMENTED,
         "lab.soak:soak", "engine/test_engine_machine.py::test_whatever_happens_an_answer_is_what_its_request_says_alone"),
    _row(_ENGINE, "A recorded run made again, decision by decision", IMPLEMENTED,
         "engine.workload_file:perform", "engine/test_workload_file.py::test_whatever_happened_happens_again"),
    _row(_LAB, "The faults of schedulers and caches, each of them found", IMPLEMENTED,
         "lab.faults:FAULTS", "engine/test_engine_machine.py::test_a_soak_finds_every_fault"),
    _row(_ENGINE, "Continuous batching, chunked prefill, preemption, in any mixture", IMPLEMENTED,
         "engine.scheduler:Scheduler", "engine/test_scheduler_machine.py::TestSchedulerMachine"),
    _row(_ENGINE, "Scheduling never changes an answer: difference 0.0", IMPLEMENTED,
         "engine.llm_engine:LLMEngine", "engine/test_equivalence.py::test_scheduling_never_changes_the_output"),
    _row(_ENGINE, "Requests that can never run are refused by name", IMPLEMENTED,
         "engine.scheduler:Scheduler", "engine/test_scheduler.py::test_a_request_that_can_never_fit_is_refused"),
    _row(_ENGINE, "Greedy, temperature, top-k, top-p, min-p, penalties, bias: as `transformers` has them", IMPLEMENTED,
         "engine.sampler:probabilities", "engine/test_sampler_law.py::test_the_law_is_that_of_transformers"),
    _row(_KERNELS, "Tokens drawn by a kernel that sorts nothing: the law in float64", IMPLEMENTED,
         "kernels.native:NativeBackend", "kernels/test_sampling.py::test_law_and_tokens_are_those_of_the_definition"),
    _row(_ENGINE, "Stop texts: no part of one is ever sent", IMPLEMENTED,
         "engine.detokenizer:Detokenizer", "engine/test_sampling_rules.py::test_no_part_of_a_stop_text_is_sent"),
    _row(_ENGINE, "Answers out of a list, or that match a pattern", IMPLEMENTED,
         "engine.constraint:constraint_of", "engine/test_sampling_rules.py::test_all_that_matches_can_come_and_no_more"),
    _row(_ENGINE, "Log-probabilities of answer and prompt", IMPLEMENTED,
         "engine.logprobs:logprobs_of", "engine/test_sampling_rules.py::test_logprobs_are_the_models_own"),
    _row(_ENGINE, "Speculation by n-grams: the same tokens, difference 0.0", IMPLEMENTED,
         "engine.speculative.ngram:NGramProposer", "engine/test_speculation.py::test_ngram_speculation_is_plain_decoding"),
    _row(_ENGINE, "Speculation by a draft model, greedy: the same tokens, difference 0.0", IMPLEMENTED,
         "engine.speculative.draft_model:DraftModelProposer",
         "engine/test_speculation.py::test_greedy_draft_speculation_is_plain_decoding"),
    _row(_ENGINE, "Speculation by a draft model, sampled: the same law", IMPLEMENTED,
         "engine.verify:rejected", "engine/test_speculation_law.py::test_the_engine_keeps_the_law"),
    _row(_ENGINE, "What guesses bring: acceptance by place, tokens a pass, speed-up, the law", IMPLEMENTED,
         "bench.speculation:bench_speculation", "bench/test_speculation_bench.py::test_what_is_counted_on_the_lab_model"),
    _row(_LAB, "All mechanisms in all combinations: difference 0.0", IMPLEMENTED,
         "lab.matrix:SETTINGS", "lab/test_matrix.py::test_every_cell_says_what_the_plain_loop_says"),
    _row(_ENGINE, "Seeds that hold under batching", IMPLEMENTED,
         "engine.sampler:sample", "engine/test_sampler.py::test_seeded_tokens_do_not_depend_on_batch_mates"),
    _row(_ENGINE, "Streams and batches from one engine", IMPLEMENTED,
         "engine.llm:LLM", "engine/test_llm.py::test_a_stream_joined_is_the_answer"),
    _row(_ENGINE, "Traces: every step recorded, free when off", IMPLEMENTED,
         "engine.trace_file:trace_of", "engine/test_trace_file.py::test_without_an_observer_no_record_is_made"),
    _row(_LAB, "Replays that need no kernel", IMPLEMENTED,
         "widgets.request_life:RequestLife", "widgets/test_replay_page.py::test_buttons_scrubber_and_strip_lead_to_a_step"),
    _row(_LAB, "Chat in the terminal: streaming, with history", IMPLEMENTED,
         "cli.chat:Conversation", "cli/test_chat.py::test_each_line_is_a_turn_and_history_is_kept"),
    _row(_LAB, "Set-up in one command, on Linux", IMPLEMENTED,
         "lab.environment:Environment", "lab/test_environment.py::test_first_set_up_installs_builds_and_fetches"),
    _row(_LAB, "All checks in one command", IMPLEMENTED,
         "lab.verify:verify", "lab/test_verify.py::test_all_stages_run_and_pytest_closes"),
    _row(_LAB, "Notebooks that run to the same bytes again", IMPLEMENTED,
         "lab.notebooks:execute", "lab/test_notebooks_run.py::test_a_second_run_writes_the_same_bytes"),
    _row(_LAB, "A book that needs no kernel and no network", IMPLEMENTED,
         "lab.up:build_book", "test_book.py::test_a_page_needs_no_network_and_has_no_error"),
    _row(_LAB, "macOS: paths and tools follow its customs", REFERENCE,
         "loaders.zoo:cache_dir", "loaders/test_zoo.py::test_cache_dir"),
    _row(_LAB, "Windows: paths and tools follow its customs", REFERENCE,
         "loaders.zoo:cache_dir", "loaders/test_zoo.py::test_cache_dir"),
)  # fmt: skip
