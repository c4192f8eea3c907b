"""Writes golden_ids.json: token ids of many texts as llama.cpp's tokenizer gives them.

    python make_golden_ids.py SmolLM2-135M-Instruct.Q4_1.gguf golden_ids.json

Needs `llama-cpp-python` and `gguf`. The vocabulary of SmolLM2 is used under each rule for cutting text into
words; a SentencePiece vocabulary of a few hundred pieces is made up here and goes into the file.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

WORD_RULES = ("gpt-2", "llama-bpe", "qwen2", "tekken", "smaug-bpe")
SEPARATOR = "¦"
TEXTS = (
    "Hello¦Hello world¦HELLO WORLD¦hELLo WoRLD¦The quick brown fox jumps over the lazy dog.¦I'm¦don't¦DON'T"
    "¦we'Re they'LL you'd¦it's 's 't 're 've 'm 'll 'd¦O'Reilly¦rock'n'roll¦\"quoted\"¦'quoted'¦a¦ab¦abc¦A"
    "¦z z z¦no-break¦e-mail¦well—known¦1¦12¦123¦1234¦12345¦1234567890¦3.14159¦1,000,000¦0x1F¦1e-10¦v1.2.3"
    "¦2024-01-31¦12:34:56¦$1.99¦50%¦#1¦No. 5¦½ ¼ ²³ ①②¦Ⅳ¦٣٤٥¦१२३¦1a2b3c¦a1b2¦007¦ 1¦ 12 345",
    "!¦!!¦!!!¦?!¦...¦…¦---¦===¦***¦((()))¦[[]]¦{}{}¦<>¦<<>>¦&&¦||¦;;¦::¦//¦\\\\¦@#$%^&*¦~`¦_ __ ___¦+-*/="
    "¦http://example.com/a?b=c&d=e#f¦user@example.com¦/usr/local/bin/python3.11¦C:\\Windows\\System32"
    "¦def f(x):\n    return x + 1¦for (int i = 0; i < 10; ++i) { sum += a[i]; }¦SELECT * FROM t WHERE id = 1;"
    '¦<div class="a">text</div>¦{"key": [1, 2.5, null, true]}¦x = y if z else w¦#include <stdio.h>\n\nint x;'
    '¦\tindented\twith\ttabs¦if a:\n\tif b:\n\t\tpass¦fn main() { println!("{}", 1); }¦a->b::c<d>()¦i++;--j;',
    "你好¦你好，世界！¦我爱北京天安门。¦今天是2024年1月31日¦中文 and English 混合¦繁體中文測試¦ひらがな¦カタカナ"
    "¦漢字かな交じり文¦こんにちは世界¦안녕하세요¦한국어 텍스트입니다¦Привет, мир!¦Съешь ещё этих булок¦Ελληνικά"
    "¦العربية من اليمين¦שלום עולם¦हिन्दी पाठ¦ไทย¦ქართული¦Tiếng Việt¦Příliš žluťoučký kůň¦Zażółć gęślą jaźń"
    "¦Ünïcödé¦naïve café résumé¦é¦ß ẞ¦İ ı¦ǅ¦ª º¦ﬁ ﬂ¦𝔘𝔫𝔦𝔠𝔬𝔡𝔢¦𐍈"
    "¦😀¦😀😀😀¦👍🏽¦👩‍👩‍👧‍👦¦🇨🇿🇩🇪¦❤️¦☕️ time¦a😀b¦∑∫√∞≠≈¦→←↑↓¦♠♣♥♦¦█▓▒░",
    " ¦  ¦   ¦    ¦        ¦\n¦\n\n¦\n\n\n¦\r\n¦\r¦\t¦\t\t¦ \n¦\n ¦ \n \n¦\n\n1.¦\n\n1. a¦a\n¦a\n\n¦a\n\nb"
    "¦a \n b¦ a¦ a b¦a  b¦a   b¦  a¦   a¦a  ¦a   ¦a\t\tb¦\n  a¦\n\ta¦a\r\nb¦a\r\n\r\nb¦.\n¦.\n\n¦!\n\n?¦ .¦ ...¦. ."
    "¦\u00a0¦\u00a0a¦a\u00a0b¦\u3000a¦\u2028¦\u200b¦\u200d¦\ufeff¦\u00ad¦a\u0301¦\ufffd¦\ue000¦\x01\x02¦\x7f¦\x85a",
    "<|im_start|>¦<|im_end|>¦<|im_start|>user\nHi<|im_end|>\n¦<|endoftext|>¦a<|im_end|>b¦a <|im_end|> b"
    "¦<|im_start|><|im_start|>¦<|im_end|>\n<|im_start|>assistant\n¦<jupyter_code>¦<repo_name>x¦<file_sep>"
    "¦<issue_start> 1¦<|im_end¦|im_end|>¦<|notatoken|>¦<s>¦</s>¦<unk>¦[INST]¦[/INST]¦<0x0A>¦▁¦▁a¦Ġ¦Ġa¦Ċ¦ĠĠ",
)
CODE_POINTS = (
    *range(0x20, 0x7F),
    *range(0xA0, 0x250),
    *range(0x400, 0x460),
    *range(0x4E00, 0x4E40),
)
CORPUS_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or"
)


def golden_texts() -> list[str]:
    """About 430 texts: written by hand, and put together from those and at random from a fixed seed."""
    written = [text for group in TEXTS for text in group.split(SEPARATOR)]
    chance = random.Random(20240131)
    texts = list(written)
    texts += ["".join(chance.choices(written, k=chance.randrange(2, 6))) for _ in range(90)]
    texts += [" ".join(chance.choices(written, k=chance.randrange(2, 6))) for _ in range(40)]
    texts += [
        "".join(chr(point) for point in chance.choices(CODE_POINTS, k=chance.randrange(1, 20)))
        for _ in range(30)
    ]
    return list(dict.fromkeys(texts))


def tokenize(path: Path, texts: list[str], special: bool, **overrides: str) -> list[list[int]]:
    """llama.cpp's ids, without the special tokens that it would put around a prompt."""
    model = llama_cpp.Llama(
        str(path),
        vocab_only=True,
        verbose=False,
        kv_overrides={key.replace("__", "."): value for key, value in overrides.items()} or None,
    )
    ids = [model.tokenize(text.encode(), add_bos=False, special=special) for text in texts]
    model.close()
    return ids


def small_pieces() -> dict[str, Any]:
    """A SentencePiece vocabulary: control tokens, bytes, and pieces whose scores favour the common ones."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    words = ["▁" + word for word in CORPUS_WORDS.split()]
    made = {"▁": 0, "▁▁": 0, "▁▁▁▁": 0}
    for word in words:
        for end in range(1, len(word) + 1):
            made.setdefault(word[:end], 0)
            made.setdefault(word[1:end] or "▁", 0)
    made.update(dict.fromkeys("abcdefghijklmnopqrstuvwxyz.,!é你", 0))
    pieces += list(made)
    types += [1] * len(made)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(made))]
    return {"tokens": pieces, "scores": scores, "token_type": types}


def write_small_gguf(path: Path, vocabulary: dict[str, Any]) -> None:
    """The made-up vocabulary as a GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_scores(vocabulary["scores"])
    writer.add_token_types(vocabulary["token_type"])
    for name, token_id in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(token_id)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    model, output = Path(sys.argv[1]), Path(sys.argv[2])
    texts = golden_texts()
    ids = tokenize(model, texts, True)
    golden: dict[str, Any] = {"llama_cpp": llama_cpp.__version__, "texts": texts, "smollm": ids}
    # Elsewhere only what differs from that, as index -> ids.
    golden["smollm, special tokens as text"] = differing(ids, tokenize(model, texts, False))
    for rule in WORD_RULES:
        golden[rule] = differing(ids, tokenize(model, texts, True, tokenizer__ggml__pre=rule))
    vocabulary = small_pieces()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.gguf"
        write_small_gguf(small, vocabulary)
        golden["pieces"] = {**vocabulary, "ids": tokenize(small, texts, True)}
    output.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


def differing(ids: list[list[int]], others: list[list[int]]) -> dict[int, list[int]]:
    """The lists that are not the same, by index."""
    pairs = enumerate(zip(ids, others, strict=True))
    return {index: other for index, (mine, other) in pairs if mine != other}


if __name__ == "__main__":
    main()
