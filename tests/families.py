"""Tiny configurations of every family of text classifiers that the installed transformers has, by its own mapping.

One table of sizes fits most families, since they share the names of their settings; `CHANGES` holds what a family
needs besides to be tiny, or to be built at all.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from conftest import LABELS, make_tokenizer

FAMILIES = tuple(sorted(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES))
N_LAYERS = 4
WIDTH, HEADS, INNER, POSITIONS, VOCABULARY = 32, 4, 48, 64, 40

SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim"), WIDTH
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), N_LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), N_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_inner", "hidden_dim", "d_ff", "n_inner", "ffn_hidden_size"), INNER
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "feed_forward_size"), INNER),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), POSITIONS),
    **dict.fromkeys(("head_dim", "d_head", "kv_channels", "d_kv"), WIDTH // HEADS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_group", "topk_group"), 4),
    **dict.fromkeys(("num_experts_per_tok", "q_groups", "k_groups", "v_groups"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "entity_emb_size", "intra_bottleneck_size", "dff"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "coordinate_size", "shape_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "index_n_heads"), 2),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "xpath_unit_hidden_size", "d_latents"), 16),
    **dict.fromkeys(
        ("pronunciation_vocab_size", "shape_vocab_size", "num_hash_buckets", "entity_vocab_size"), VOCABULARY
    ),
    **dict.fromkeys(("max_xpath_tag_unit_embeddings", "max_xpath_subs_unit_embeddings"), POSITIONS),
    **dict.fromkeys(
        ("max_depth", "index_topk", "num_self_attends_per_block", "num_latents", "num_self_attention_heads"), 4
    ),
    "num_cross_attention_heads": 4,
    "max_2d_position_embeddings": POSITIONS,
    "n_mamba_heads": 2,
    "mamba_d_state": 8,
    "tag_pad_id": 1,
    "subs_pad_id": 1,
    "attention_window": 4,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
TEXT = {"hidden_size": WIDTH, "num_hidden_layers": N_LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER}
VISION = {**TEXT, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
SIGLIP = {"model_type": "siglip_vision_model", **VISION}
TEXT_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
T5 = {"decoder_start_token_id": 0}
ALL_HEADS = {"num_key_value_heads": HEADS}
CHANGES: dict[str, dict[str, Any]] = {
    "axk1": {"n_group": 2, "topk_group": 1, **ALL_HEADS},
    "axk2": {"n_group": 2, "topk_group": 1, **ALL_HEADS},
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), ROTARY),
    },
    "deberta-v2": {
        **{"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
        **{"conv_kernel_size": 3, "conv_act": "gelu", "norm_rel_ebd": "layer_norm"},
    },
    "deepseek_v2": {"n_group": 2, "topk_group": 1, **ALL_HEADS},
    "deepseek_v3": {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **ALL_HEADS},
    "esmc": ALL_HEADS,
    "gemma3": {"vision_config": SIGLIP, "mm_tokens_per_image": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 4},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 4},
    "lilt": {"hidden_size": 48},
    "markuplm": {"max_depth": 5},
    "minicpm3": ALL_HEADS,
    "mistral4": {"n_group": 1, "topk_group": 1, **ALL_HEADS},
    "mobilebert": {"embedding_size": 16, "normalization_type": "layer_norm"},
    "modernvbert": {
        "text_config": {"model_type": "modernbert", **TEXT, **TEXT_TOKENS},
        "vision_config": SIGLIP,
    },
    "qwen3_5": {"vision_config": {**VISION, "num_heads": 4, "depth": 1, "out_hidden_size": WIDTH}},
    "reformer": {
        "attn_layers": ["local", "lsh", "local", "lsh"],
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [8, 24],
        "attention_head_size": 8,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "t5gemma2": {
        "encoder": {"text_config": TEXT | TEXT_TOKENS, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
    },
    "mt5": T5,
    "t5": T5,
    "umt5": T5,
    "ultravbert": {
        "text_config": {"model_type": "ultrabert", **TEXT, **TEXT_TOKENS},
        "vision_config": SIGLIP,
    },
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
}


def tiny_settings(family: str) -> dict[str, Any]:
    """Give the settings that make a family's configuration tiny."""
    return {**_merged(_sizes(CONFIG_MAPPING[family]), CHANGES.get(family, {}))}


def _sizes(kind: type[Any]) -> dict[str, Any]:
    taken = inspect.signature(kind).parameters
    found: dict[str, Any] = {name: size for name, size in SIZES.items() if name in taken or name.endswith("_id")}
    for name, inner in (getattr(kind, "sub_configs", None) or {}).items():
        if name in taken and inner.__name__ != "AutoConfig":
            found[name] = _sizes(inner)
    return found


def _merged(sizes: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _merged(sizes[key], changes[key])
        if isinstance(sizes.get(key), dict) and isinstance(changes.get(key), dict)
        else changes.get(key, sizes.get(key))
        for key in sizes | changes
    }


BLOCKS = dict.fromkeys(("bart", "bigbird_pegasus", "mbart", "mvp", "plbart"), "model.decoder.layers")
BLOCKS |= dict.fromkeys(("t5", "mt5", "umt5"), "transformer.decoder.block")
BLOCKS |= dict.fromkeys(("t5gemma", "t5gemma2"), "model.decoder.layers")


def save_family(folder: Path, family: str, seed: int, **changes: Any) -> Path:
    """Save a tiny random classifier of a family, its weights larger than usual so that layers matter."""
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, num_labels=len(LABELS), **names, **tiny_settings(family), **changes)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


TOOLS = ("swap", "states", "grads", "finetune", "retrain")
WORKS = "works"
NOTES = {"whole": "run whole for each window", "alone": "only rows of one length share a pass"}


def page(results: dict[str, dict[str, str]], versions: str) -> str:
    """Write docs/architectures.md of each family's results by tool, with the reason of what was refused."""
    lines, totals = [], dict.fromkeys(("works", "works in part", "refused"), 0)
    for family in sorted(results):
        found = dict(results[family])
        words = found.pop("note", "").split()
        notes = [NOTES.get(word, f"`--blocks {word}`") for word in words]
        refused = [tool for tool in TOOLS if found[tool] != WORKS]
        verdict = "works" if not refused else "refused" if len(refused) == len(TOOLS) else "works in part"
        totals[verdict] += 1
        if refused:
            reason = found[refused[0]].removeprefix("mltools: ").strip().replace("|", "/")
            working = ", ".join(tool for tool in TOOLS if tool not in refused)
            notes += [f"{working} work", f"{', '.join(refused)} do not: {reason}"] if working else [reason]
        lines.append(f"| {family} | {verdict} | {'; '.join(notes)} |")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in totals.items())
    return (
        "# Architectures\n\nMade by `tests/test_families.py`, which tries "
        f"{', '.join(TOOLS)} on tiny models of every family of text classifiers that transformers has, and compares "
        f"them with the stock model; seen with {versions}.\n\n{len(results)} families: {counts}, anything else 0.\n\n"
        "| family | | how, or why not |\n|---|---|---|\n" + "\n".join(lines) + "\n"
    )
