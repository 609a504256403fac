"""Many requests at once for a while, some of them abandoned at any moment, some constrained, some read slowly, with
shared beginnings, in a pool that is too small for all: then no error, every choice ended once, equal requests got equal
text, and memory, files and KV blocks are as before. Usage: soak.py
[MOESAIC_BINARY [MODEL_DIR]] [--seconds 60] [--streams 64] [--seed 1]. Standard library only."""
import argparse
import asyncio
import itertools
import json
import random
import sys
import time

import server as server_module

READ_TIMEOUT_S = 600  # of a whole stream, on a machine that does other work too
MAX_GROWTH_BYTES = 32 << 20  # of resident memory between the warm-up and the end of a short run
MAX_GROWTH_SHARE = 0.01      # and between the first third and the end of one of ten minutes or more
LONG_S = 600
# A pool of each of the 4 groups for some of its streams: cached blocks are evicted, sequences preempted. Drafts in every
# step: with so many streams they do not pay.
FLAGS = ("--max-total-tokens", "1024", "--context-length", "512", "--speculative-adaptive=false")
QUESTIONS = ("Tell me a tale.", "What is 14 + 27?", "Spell the word river.", "Sort 5 3 9 1.", "Say hello.")
SYSTEMS = tuple(f"You are helper {i}. " + "Answer in few words, and never in verse. " * 8 for i in range(4))
SALTS = ("", "", "a", "b")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
          "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


class Totals:
    def __init__(self):
        self.streams = self.tokens = self.abandoned = self.constrained = self.compared = 0
        self.choices = self.abandoned_choices = 0  # those that were sent, of whole answers and of abandoned ones
        self.texts = {}                            # the longest text of each request that says what its text is
        self.errors = []


def body_of(rng, name):
    messages = [{"role": "user", "content": rng.choice(QUESTIONS) + " " * rng.randrange(3)}]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    body = {"model": name, "messages": messages, "max_tokens": rng.choice((4, 16, 64, 128)),
            "temperature": rng.choice((0, 1)), "seed": rng.randrange(3), "n": rng.choice((1, 1, 1, 2)),
            "stream": rng.random() < 0.8, "priority": rng.choice((0, 0, 0, 1, -1))}
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if salt := rng.choice(SALTS):
        body["cache_salt"] = salt if rng.random() < 0.8 else f"{salt} {rng.random()}"  # some come once and never again
    if rng.random() < 0.15:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema_of(rng)}}
    elif rng.random() < 0.2:
        body.update(max_tokens=240, ignore_eos=True)
    elif rng.random() < 0.2:
        body.update(stop=[" the", "\n\n"])
    if rng.random() < 0.1:
        body.update(logprobs=True, top_logprobs=2)
    return body


def schema_of(rng):
    """SCHEMA, or one that nobody has asked for before: what the server learns of it must be forgotten."""
    if rng.random() < 0.5:
        return SCHEMA
    name = {"type": "string", "pattern": f"^[a-z {rng.randrange(10**6)}]{{1,12}}$"}
    return {**SCHEMA, "properties": {**SCHEMA["properties"], "name": name}}


def key_of(body, choice):
    """What decides the text of a choice: all with this key begin alike, whatever their max_tokens and their company."""
    seed = body["seed"] + choice if body["temperature"] > 0 else None
    return json.dumps([body["messages"], seed, body.get("stop"), body.get("ignore_eos"), body.get("response_format")])


def check_equal(texts, body, totals):
    for choice, text in texts.items():
        key = key_of(body, choice)
        text = text.rstrip("\ufffd")  # a character that max_tokens cut
        known = totals.texts.get(key, "")
        short, long = sorted((text, known), key=len)
        assert long.startswith(short), f"{body}: {text!r} and {known!r}"
        totals.compared += key in totals.texts
        totals.texts[key] = long


def check_constrained(text, reason):
    """What ended by itself is a whole answer to SCHEMA; what was cut may end anywhere."""
    if reason != "stop":
        return
    value = json.loads(text)
    assert set(value) == {"name", "age", "tags"} and 0 <= value["age"] <= 150, text
    assert len(value["name"]) <= 12 and len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b"}, text


async def send(port, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data)
    await writer.drain()
    return reader, writer


async def read_head(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head + await reader.read(2000)
    return head.lower()


async def events(reader, pause_s):
    """The data of each event; checks status and framing. Now and then nothing is read for pause_s."""
    head = await read_head(reader)
    assert b"transfer-encoding: chunked" in head, head
    pending = b""
    for count in itertools.count():
        if pause_s and count % 8 == 7:
            await asyncio.sleep(pause_s)
        size = int(await reader.readuntil(b"\r\n"), 16)
        pending += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            break
        *whole, pending = pending.split(b"\n\n")
        for event in whole:
            assert event.startswith(b"data: "), event
            yield event[6:].decode()
    assert not pending, pending


async def read_stream(reader, pause_s):
    """Texts and finish reasons by choice, and the usage."""
    reasons, texts, last, usage = {}, {}, "", None
    async for data in events(reader, pause_s):
        assert last != "[DONE]", "an event after [DONE]"
        last = data
        if data == "[DONE]":
            continue
        chunk = json.loads(data)
        assert "error" not in chunk, data
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
            if choice["finish_reason"]:
                assert index not in reasons, "a choice ended twice"
                reasons[index] = choice["finish_reason"]
    assert last == "[DONE]", last
    return texts, reasons, usage


async def read_whole(reader):
    await read_head(reader)
    answer = json.loads(await reader.read())
    choices = answer["choices"]
    return ({choice["index"]: choice["message"]["content"] for choice in choices},
            {choice["index"]: choice["finish_reason"] for choice in choices}, answer["usage"])


async def read_answer(rng, reader, body, totals):
    pause_s = 0.2 if rng.random() < 0.05 else 0
    texts, reasons, usage = await (read_stream(reader, pause_s) if body["stream"] else read_whole(reader))
    assert len(reasons) == body["n"] and set(reasons.values()) <= {"stop", "length"}, reasons
    if "response_format" in body:
        for index, reason in reasons.items():
            check_constrained(texts[index], reason)
        totals.constrained += 1
    check_equal(texts, body, totals)
    assert 0 < usage["completion_tokens"] <= body["n"] * body["max_tokens"], usage
    totals.tokens += usage["completion_tokens"]


async def leave(rng, reader, writer):
    """Without a word: before the request is read, while it waits, computes its prompt or is answered."""
    if rng.random() < 0.5:
        await asyncio.sleep(rng.choice((0, 0.001, 0.01, 0.1, 1)) * rng.random())
    else:
        await asyncio.wait_for(reader.read(rng.randrange(1, 2000)), READ_TIMEOUT_S)
    writer.transport.abort()


async def one_request(rng, server, totals):
    body = body_of(rng, server.name)
    reader, writer = await send(server.port, body)
    try:
        if rng.random() < 0.1:
            totals.abandoned_choices += body["n"]
            await leave(rng, reader, writer)
            totals.abandoned += 1
            return
        await asyncio.wait_for(read_answer(rng, reader, body, totals), READ_TIMEOUT_S)
        totals.choices += body["n"]
        totals.streams += 1
    finally:
        writer.close()


async def client(seed, end, server, totals):
    rng = random.Random(seed)
    while time.monotonic() < end and len(totals.errors) < 10:
        try:
            await one_request(rng, server, totals)
        except Exception as error:  # counted, and shown at the end
            totals.errors.append(f"{type(error).__name__}: {error}")


async def load(seed, seconds, num_streams, server, totals):
    end = time.monotonic() + seconds
    await asyncio.gather(*(client(seed * 1000 + i, end, server, totals) for i in range(num_streams)))


def check_ends(server, totals):
    """Every choice that ran ended once: those of whole answers, and of the abandoned ones as many as got so far."""
    ended = server.metric("vllm:request_success_total")
    assert totals.choices <= ended <= totals.choices + totals.abandoned_choices, (totals.choices, ended)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=server_module.DEFAULT_PROGRAM)
    parser.add_argument("model", nargs="?", default=server_module.DEFAULT_MODEL)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with server_module.Server(options.program, options.model, *FLAGS) as server:
        totals = Totals()
        warm_up_s = options.seconds / 3 if options.seconds >= LONG_S else 10
        asyncio.run(load(options.seed, warm_up_s, options.streams, server, totals))
        server.wait_at_rest()
        before, files_before = server.rss_bytes(), server.num_files()
        start = time.monotonic()
        tokens_before = totals.tokens
        seconds = options.seconds - warm_up_s if options.seconds >= LONG_S else options.seconds
        asyncio.run(load(options.seed + 1, seconds, options.streams, server, totals))
        elapsed = time.monotonic() - start
        server.wait_at_rest()
        growth = server.rss_bytes() - before
        files = server.wait_for_files(files_before)
        if not totals.errors:
            check_ends(server, totals)
        preempted = server.metric("vllm:num_preemptions_total")
        cached = server.metric("sglang:cached_tokens_total")
        guessed = server.metric("vllm:spec_decode_num_accepted_tokens_total")
        assert server.request("GET", "/health_generate")[0] == 200
        code = server.stop()
    print(f"seed {options.seed}: {totals.streams} answers, {totals.constrained} constrained, {totals.compared} texts "
          f"compared, {totals.abandoned} abandoned, "
          f"{preempted:.0f} preemptions, {cached:.0f} cached tokens, {guessed:.0f} tokens guessed right, "
          f"{(totals.tokens - tokens_before) / elapsed:.0f} tokens/s, memory {growth / 2**20:+.1f} MiB "
          f"({growth / before:+.2%}), {files} open files, exit code {code}")
    for error in totals.errors:
        print("error:", error)
    limit = MAX_GROWTH_SHARE * before if options.seconds >= LONG_S else MAX_GROWTH_BYTES
    good = not totals.errors and totals.streams > 0 and growth <= limit and code == 0
    good = good and files <= files_before and min(totals.constrained, totals.compared, preempted, cached, guessed) > 0
    print("1 passed, 0 failed" if good else "0 passed, 1 failed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
