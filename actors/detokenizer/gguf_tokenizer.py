"""Tokenizers from the metadata of GGUF files, with the same ids as llama.cpp gives."""

from typing import Any, Final, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pillion.runtime.errors import ModelError
from pillion.runtime.gguf_file import GgufFile

_PREFIX: Final = "tokenizer.ggml"
_SPACE_MARK: Final = "▁"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a text is cut into words before the merges: names of tokenizer.ggml.pre -> kind.
_WORD_RULES: Final = {
    "gpt-2": "gpt-2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama-bpe": "llama3",
    "llama3": "llama3",
    "llama-v3": "llama3",
    "smaug-bpe": "llama3",
    "dbrx": "llama3",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "tekken": "tekken",
}
_PATTERNS: Final = {"llama3": _LLAMA3, "qwen2": _QWEN2, "tekken": _TEKKEN}
# These vocabularies hold whole words that no chain of merges reaches.
_WHOLE_WORDS_FIRST: Final = ("llama3", "tekken")
_BEGIN_BY_DEFAULT: Final = ("llama3", "tekken")

# Tokens that end a turn whatever the file calls its end-of-sequence token.
_TURN_ENDS: Final = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")
)


def gguf_tokenizer(file: GgufFile) -> tokenizers.Tokenizer:
    """The tokenizer that a GGUF file describes. Raises ModelError, naming what is missing or unknown."""
    kind = file.string(f"{_PREFIX}.model")
    if kind == "gpt2":
        return _byte_level_tokenizer(file)
    if kind == "llama":
        return _sentence_piece_tokenizer(file)
    raise ModelError(
        f"{file.path}: {_PREFIX}.model is {kind!r}; Pillion reads tokenizers of the kinds 'gpt2' and 'llama'"
    )


def gguf_special_tokens(file: GgufFile) -> dict[str, str]:
    """Names of special tokens as chat templates use them: bos_token, eos_token, unk_token, pad_token."""
    tokens = _tokens(file)
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found: dict[str, str] = {}
    for key, name in names.items():
        token_id = _special_id(file, key)
        if token_id is not None:
            found[name] = tokens[token_id]
    return found


def gguf_end_ids(file: GgufFile) -> frozenset[int]:
    """Ids that end an answer: the end of sequence, and what the model's makers end a turn with."""
    ids = {_special_id(file, key) for key in ("eos", "eot", "eom")}
    unknown = _special_id(file, "unknown")
    tokens = _tokens(file)
    for token_id, kind in enumerate(_token_types(file, len(tokens))):
        if kind == _CONTROL and token_id != unknown and tokens[token_id] in _TURN_ENDS:
            ids.add(token_id)
    return frozenset(token_id for token_id in ids if token_id is not None)


def _byte_level_tokenizer(file: GgufFile) -> tokenizers.Tokenizer:
    rule = _word_rule(file)
    tokens = list(_tokens(file))
    backend = _merging(file, tokens, _merges(file), {"ignore_merges": rule in _WHOLE_WORDS_FIRST})
    backend.pre_tokenizer = _pre_tokenizer(rule)
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    _add_marked_tokens(backend, file, tokens)
    _frame(backend, file, tokens, begins=rule in _BEGIN_BY_DEFAULT)
    return backend


def _sentence_piece_tokenizer(file: GgufFile) -> tokenizers.Tokenizer:
    tokens = list(_tokens(file))
    types = _token_types(file, len(tokens))
    merges = _merges(file) or _merges_of_scores(file, tokens, types)
    unknown = _special_id(file, "unknown")
    options = {
        "unk_token": None if unknown is None else tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": _BYTE in types,
    }
    backend = _merging(file, tokens, merges, options)
    prefixed = file.boolean(f"{_PREFIX}.add_space_prefix") is not False
    spaces = normalizers.Replace(" ", _SPACE_MARK)
    steps = [normalizers.Prepend(_SPACE_MARK), spaces] if prefixed else [spaces]
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE_MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=int(prefixed), right=0),
        ]
    )
    _add_marked_tokens(backend, file, tokens)
    _frame(backend, file, tokens, begins=True)
    return backend


def _merging(
    file: GgufFile, tokens: list[str], merges: list[tuple[str, str]], options: dict[str, Any]
) -> tokenizers.Tokenizer:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises plain Exception for anything wrong in the lists
        raise ModelError(f"{file.path}: the vocabulary does not fit its merges: {error}") from error


def _word_rule(file: GgufFile) -> str:
    name = file.string(f"{_PREFIX}.pre")
    rule = _WORD_RULES.get(name or "")
    if rule is None:
        raise ModelError(
            f"{file.path}: {_PREFIX}.pre is {name!r}, which says how text is cut into words; Pillion knows"
            f" {', '.join(_WORD_RULES)}. Set `tokenizer` to a directory with the model's tokenizer.json"
        )
    return rule


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "digits":
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    else:
        words = tokenizers.Regex(_PATTERNS[rule])
        steps = [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    return pre_tokenizers.Sequence(steps)


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.strings(f"{_PREFIX}.tokens")
    if tokens is None:
        raise ModelError(f"{file.path} has no tokenizer: {_PREFIX}.tokens is missing")
    return cast("list[str]", tokens)


def _token_types(file: GgufFile, count: int) -> list[int]:
    types = file.numbers(f"{_PREFIX}.token_type")
    if types is None:
        return [1] * count
    if len(types) != count:
        raise ModelError(f"{file.path}: {count} tokens but {len(types)} entries in token_type")
    return cast("list[int]", types.tolist())


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in file.strings(f"{_PREFIX}.merges") or ():
        # The first character may itself be a space in a vocabulary that is not byte-level.
        cut = merge.find(" ", 1)
        if cut < 0:
            raise ModelError(f"{file.path}: {merge!r:.80} in {_PREFIX}.merges is no pair")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _merges_of_scores(file: GgufFile, tokens: list[str], types: list[int]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose union scores best: all such pairs, the best union first."""
    scores = file.numbers(f"{_PREFIX}.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError(f"{file.path}: neither {_PREFIX}.merges nor a score for each token")
    joinable = {
        token: float(scores[token_id].item())
        for token_id, token in enumerate(tokens)
        if types[token_id] not in (_UNKNOWN, _CONTROL, _BYTE)
    }
    pairs: list[tuple[float, str, str]] = []
    for token, score in joinable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in joinable and right in joinable:
                pairs.append((score, left, right))
    pairs.sort(key=lambda pair: -pair[0])
    return [(left, right) for _, left, right in pairs]


def _add_marked_tokens(backend: tokenizers.Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    special: list[AddedToken] = []
    plain: list[AddedToken] = []
    for token, kind in zip(tokens, _token_types(file, len(tokens)), strict=True):
        if kind in (_UNKNOWN, _CONTROL):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED and token:
            plain.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _frame(backend: tokenizers.Tokenizer, file: GgufFile, tokens: list[str], begins: bool) -> None:
    """The special tokens that the model wants in front of and behind a raw prompt."""
    flags = {
        "bos": file.boolean(f"{_PREFIX}.add_bos_token"),
        "eos": file.boolean(f"{_PREFIX}.add_eos_token"),
    }
    bos = _special_id(file, "bos") if (begins if flags["bos"] is None else flags["bos"]) else None
    eos = _special_id(file, "eos") if flags["eos"] else None
    backend.post_processor = framing(
        *(None if token_id is None else (tokens[token_id], token_id) for token_id in (bos, eos))
    )


def framing(
    first: tuple[str, int] | None, last: tuple[str, int] | None
) -> processors.PostProcessor:
    """Puts these tokens around a text when special tokens are asked for."""
    ends = [token for token in (first, last) if token is not None]
    names = {token_id: f"<{token_id}>" for _, token_id in ends}
    template = " ".join(
        [*([names[first[1]]] if first else []), "$A", *([names[last[1]]] if last else [])]
    )
    return processors.TemplateProcessing(
        single=template, special_tokens=[(names[token_id], token_id) for _, token_id in ends]
    )


def _special_id(file: GgufFile, key: str) -> int | None:
    token_id = file.integer(f"{_PREFIX}.{key}_token_id")
    if token_id is not None and not 0 <= token_id < len(_tokens(file)):
        # llama.cpp writes 2**32 - 1 where a model has no such token.
        return None
    return token_id
