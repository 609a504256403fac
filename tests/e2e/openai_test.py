"""The `openai` package as the client of a real server. Usage: openai_test.py [MOESAIC_BINARY [MODEL_DIR]] [-k NAME].
Starts `moesaic serve` itself on a free port. Prints 'N passed, M failed'; exit code 77 without the package."""
import json
import re
import sys
import threading
import time
import traceback

import server as server_module

try:
    import openai
except ImportError:
    print("skipped: needs the openai package (pip install openai)")
    sys.exit(77)

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class Api:
    """The client with what every test needs said once."""

    def __init__(self, server):
        self.server = server
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def chat(self, content="What is 2 + 3?", **options):
        options = {"temperature": 0, "max_tokens": 24, **options}
        return self.client.chat.completions.create(model=self.server.name,
                                                   messages=[{"role": "user", "content": content}], **options)

    def complete(self, prompt="Once upon a time", **options):
        options = {"temperature": 0, "max_tokens": 12, **options}
        return self.client.completions.create(model=self.server.name, prompt=prompt, **options)


def expect(condition, found=""):
    if not condition:
        raise AssertionError(f"found {found!r}")


def expect_error(kind, call, *parts, param=None):
    try:
        call()
    except kind as error:
        expect(all(part in str(error) for part in parts), str(error))
        expect(param is None or error.param == param, error.param)
        expect(isinstance(error.body, dict) and {"message", "type", "param", "code"} <= set(error.body), error.body)
        return
    raise AssertionError(f"expected {kind.__name__}, the call succeeded")


def joined(chunks):
    """Checks the rules of a chat stream of one choice: returns (content, reasoning, finish_reason)."""
    expect(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    expect(len(reasons) == 1, reasons)
    expect(len({chunk.id for chunk in chunks}) == 1, "ids differ")
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    content = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return content, reasoning, reasons[0]


def test_models(api):
    models = api.client.models.list().data
    expect([model.id for model in models] == [api.server.name], models)
    expect(api.client.models.retrieve(api.server.name).max_model_len > 0)
    expect_error(openai.NotFoundError, lambda: api.client.models.retrieve("other"), "other")


def test_chat(api):
    answer = api.chat()
    choice = answer.choices[0]
    expect(answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer)
    expect(choice.message.role == "assistant" and "5" in choice.message.content, choice)
    expect(choice.finish_reason == "stop", choice.finish_reason)
    usage = answer.usage
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    expect(0 < usage.completion_tokens <= 24, usage)


def test_prompt_has_one_bos(api):
    status, tokenized = api.server.request("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    expect(status == 200 and tokenized["tokens"].count(tokenized["tokens"][0]) == 1, tokenized)
    expect(api.chat("hi", max_tokens=1).usage.prompt_tokens == tokenized["count"], tokenized)


def test_stream_equals_whole(api):
    for content in ("What is 2 + 3?", "Spell the word apple.", "Tell me a tale."):
        whole = api.chat(content).choices[0]
        chunks = list(api.chat(content, stream=True))
        expect(joined(chunks)[0] == whole.message.content, (chunks, whole))
        expect(joined(chunks)[2] == whole.finish_reason, whole)


def test_stream_usage(api):
    chunks = list(api.chat(stream=True, stream_options={"include_usage": True}))
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1])
    expect(all(chunk.usage is None for chunk in chunks[:-1]), chunks)
    expect(chunks[-1].usage.completion_tokens == api.chat().usage.completion_tokens, chunks[-1])


def test_thinking(api):
    options = {"extra_body": {"chat_template_kwargs": {"thinking": True}}, "max_tokens": 200}
    message = api.chat("What is 12 + 30?", **options).choices[0].message
    expect(message.reasoning_content and "<think>" not in message.reasoning_content + message.content, message)
    chunks = list(api.chat("What is 12 + 30?", stream=True, **options))
    content, reasoning, _ = joined(chunks)
    expect((content, reasoning) == (message.content, message.reasoning_content), (content, reasoning, message))
    for chunk in chunks:
        delta = chunk.choices[0].delta
        expect(not (delta.content and getattr(delta, "reasoning_content", None)), delta)


def test_tools(api):
    question = "What is the weather in Oslo?"
    choice = api.chat(question, tools=TOOLS, max_tokens=80).choices[0]
    expect(choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == 1, choice)
    call = choice.message.tool_calls[0]
    expect(call.type == "function" and call.id and call.function.name == "get_weather", call)
    expect("city" in json.loads(call.function.arguments), call)
    chunks = list(api.chat(question, tools=TOOLS, max_tokens=80, stream=True))
    expect(joined(chunks)[2] == "tool_calls", chunks[-1])
    deltas = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    expect(deltas[0].id and deltas[0].function.name == "get_weather", deltas)
    expect("".join(part.function.arguments or "" for part in deltas) == call.function.arguments, deltas)
    follow_up = api.client.chat.completions.create(model=api.server.name, max_tokens=40, temperature=0, tools=TOOLS,
                                                   messages=[{"role": "user", "content": question},
                                                             choice.message.model_dump(exclude_none=True),
                                                             {"role": "tool", "tool_call_id": call.id,
                                                              "content": '{"weather": "rain"}'}])
    expect(follow_up.choices[0].message.content, follow_up)


def test_tool_choice(api):
    expect(api.chat("What is the weather in Oslo?", tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None)
    named = {"type": "function", "function": {"name": "get_weather"}}
    forced = api.chat("The weather in Rome, please.", tools=TOOLS, tool_choice=named, max_tokens=80).choices[0].message
    expect(forced.tool_calls and forced.tool_calls[0].function.name == "get_weather", forced)
    wrong = {"type": "function", "function": {"name": "other"}}
    expect_error(openai.BadRequestError, lambda: api.chat(tools=TOOLS, tool_choice=wrong), "other", param="tool_choice")


PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "likes"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "birds"]}, "minItems": 1, "maxItems": 3}}}


def check_person(text):
    person = json.loads(text)
    expect(list(person) == ["name", "age", "likes"], person)
    expect(isinstance(person["name"], str) and 1 <= len(person["name"]) <= 12, person)
    expect(type(person["age"]) is int and 0 <= person["age"] <= 130, person)
    expect(1 <= len(person["likes"]) <= 3 and set(person["likes"]) <= {"cats", "dogs", "birds"}, person)


def test_json_schema(api):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for temperature in (0, 1):
        choice = api.chat("Who is Tom?", response_format=form, max_tokens=100, temperature=temperature, seed=3).choices[0]
        expect(choice.finish_reason == "stop", choice)
        check_person(choice.message.content)
    chunks = list(api.chat("Who is Tom?", response_format=form, max_tokens=100, temperature=1, seed=3, stream=True))
    expect(joined(chunks)[0] == choice.message.content and joined(chunks)[2] == "stop", chunks)
    expect(api.chat("Who is Tom?", response_format=form, max_tokens=2).choices[0].finish_reason == "length")
    thinking = {"extra_body": {"chat_template_kwargs": {"thinking": True}}, "max_tokens": 400}
    message = api.chat("What is 12 + 30?", response_format=form, **thinking).choices[0].message
    expect(message.reasoning_content, message)
    check_person(message.content)
    bad = {"type": "json_schema", "json_schema": {"name": "bad", "schema": {"properties": {"a": {"not": {}}}}}}
    expect_error(openai.BadRequestError, lambda: api.chat(response_format=bad), "#/properties/a", "not",
                 param="response_format")


def test_json_schema_beside_tools(api):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    both = {"tools": TOOLS, "response_format": form, "max_tokens": 100}
    message = api.chat("What is the weather in Oslo?", **both).choices[0].message
    expect(message.content is None and message.tool_calls[0].function.name == "get_weather", message)
    expect(json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}, message)
    check_person(api.chat("Who is Tom?", tool_choice="none", **both).choices[0].message.content)
    forced = api.chat("Who is Tom?", tool_choice="required", **both).choices[0]
    expect(forced.finish_reason == "tool_calls", forced)
    expect(list(json.loads(forced.message.tool_calls[0].function.arguments)) == ["city"], forced)


def test_constrained_text(api):
    for body, matches in (({"regex": "[A-Z][a-z]{2,8} is \\d{1,3}"}, r"[A-Z][a-z]{2,8} is \d{1,3}"),
                          ({"structured_outputs": {"choice": ["cat", "dog"]}}, "cat|dog"),
                          ({"ebnf": 'root ::= "(" [0-9]{1,4} ")"'}, r"\([0-9]{1,4}\)")):
        for temperature in (0, 1):
            choice = api.complete(max_tokens=40, temperature=temperature, seed=1, extra_body=body).choices[0]
            expect(re.fullmatch(matches, choice.text) and choice.finish_reason == "stop", (body, choice))


def test_content_parts(api):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2 + 3?"}]
    expect(api.chat(parts).choices[0].message.content == api.chat().choices[0].message.content)
    image = [{"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}]
    expect_error(openai.BadRequestError, lambda: api.chat(image), "image_url")


def test_chat_logprobs(api):
    whole = api.chat(logprobs=True, top_logprobs=3)
    entries = whole.choices[0].logprobs.content
    expect(len(entries) == whole.usage.completion_tokens, entries)
    for entry in entries:
        expect(entry.logprob <= 0 and len(entry.top_logprobs) == 3 and isinstance(entry.bytes, list), entry)
        best = entry.top_logprobs
        expect(abs(best[0].logprob - entry.logprob) < 1e-6, entry)  # greedy takes the best
        expect(best[0].logprob >= best[1].logprob >= best[2].logprob, entry)
    text = bytes(byte for entry in entries for byte in entry.bytes).decode()
    expect(text.startswith(whole.choices[0].message.content), text)
    streamed = [entry for chunk in api.chat(logprobs=True, top_logprobs=3, stream=True)
                for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
    expect([(entry.token, entry.logprob) for entry in streamed] == [(entry.token, entry.logprob) for entry in entries])


def test_completion(api):
    answer = api.complete()
    expect(answer.object == "text_completion" and answer.choices[0].text, answer)
    expect(answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 12, answer)
    chunks = list(api.complete(stream=True))
    expect("".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text, chunks)
    expect(sum(chunk.choices[0].finish_reason is not None for chunk in chunks) == 1, chunks)


def test_completion_prompt_forms(api):
    texts = ["Once upon a time", "The king"]
    whole = api.complete(texts)
    expect([choice.index for choice in whole.choices] == [0, 1], whole)
    ids = [api.server.request("POST", "/tokenize", {"prompt": text})[1]["tokens"] for text in texts]
    expect([c.text for c in api.complete(ids).choices] == [c.text for c in whole.choices])
    expect(api.complete(ids[1]).choices[0].text == whole.choices[1].text)


def test_echo_logprobs(api):
    for max_tokens in (0, 1, 5):
        answer = api.complete("\n1. Carol has 20 \U0001F600", echo=True, logprobs=1, max_tokens=max_tokens)
        choice, log = answer.choices[0], answer.choices[0].logprobs
        expect("".join(log.tokens) == choice.text, (log.tokens, choice.text))
        expect(log.token_logprobs[0] is None and None not in log.token_logprobs[1:], log)
        expect(len(log.tokens) == len(log.token_logprobs) == len(log.text_offset) == len(log.top_logprobs), log)
        expect(log.text_offset == [len("".join(log.tokens[:i])) for i in range(len(log.tokens))], log.text_offset)
        expect(answer.usage.completion_tokens == max_tokens and choice.finish_reason == "length", answer)
    expect(api.complete(max_tokens=0).choices[0].text == "")


def test_n_and_seed(api):
    def texts(**options):
        answer = api.chat("Tell me a tale.", temperature=1, **options)
        return [choice.message.content for choice in sorted(answer.choices, key=lambda choice: choice.index)]
    three = texts(n=3, seed=7)
    expect(len(set(three)) > 1, three)
    expect(texts(n=3, seed=7) == three and texts(seed=7) == three[:1])
    expect(texts(seed=8) != three[:1])
    by_index = {0: "", 1: "", 2: ""}
    reasons = []
    for chunk in api.chat("Tell me a tale.", temperature=1, n=3, seed=7, stream=True):
        for choice in chunk.choices:
            by_index[choice.index] += choice.delta.content or ""
            reasons += [choice.index] if choice.finish_reason else []
    expect(list(by_index.values()) == three and sorted(reasons) == [0, 1, 2], (by_index, reasons))


def test_stop(api):
    text = api.complete(max_tokens=32).choices[0].text
    stop = text[10:16]
    for options in ({"stop": stop}, {"stop": ["zzzz", stop]}):
        choice = api.complete(max_tokens=32, **options).choices[0]
        expect(choice.text == text[:text.find(stop)] and choice.finish_reason == "stop", (text, stop, choice))
        chunks = list(api.complete(max_tokens=32, stream=True, **options))
        expect("".join(chunk.choices[0].text for chunk in chunks) == choice.text, chunks)


def test_same_alone_and_in_company(api):
    alone = api.chat("Tell me a tale.", max_tokens=40).choices[0].message.content
    results = [None] * 8

    def ask(index):
        content = "Tell me a tale." if index % 2 == 0 else f"What is {index} + 11?"
        results[index] = api.chat(content, max_tokens=40).choices[0].message.content
    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(results[::2] == [alone] * 4, results)


def test_errors(api):
    bad = openai.BadRequestError
    expect_error(openai.NotFoundError, lambda: api.client.completions.create(model="other", prompt="x"), "other")
    expect_error(bad, lambda: api.chat(temperature=3), "temperature", param="temperature")
    expect_error(bad, lambda: api.chat(n=100000), "128", param="n")
    expect_error(bad, lambda: api.chat(response_format={"type": "xml"}), "xml", param="response_format")
    expect_error(bad, lambda: api.client.chat.completions.create(model=api.server.name, messages=[]), "empty")
    expect_error(bad, lambda: api.complete([-1]), "-1", param="prompt")
    expect_error(bad, lambda: api.complete(logit_bias={"99999999": 5}), "99999999", param="logit_bias")
    expect_error(bad, lambda: api.chat(extra_body={"stop_token_ids": [151645]}), "151645", param="stop_token_ids")
    limit = api.client.models.retrieve(api.server.name).max_model_len
    used = api.complete(max_tokens=1).usage.prompt_tokens
    expect_error(bad, lambda: api.complete(max_tokens=limit), str(limit), f"{used} tokens")
    expect_error(bad, lambda: api.complete("word " * limit * 2, max_tokens=1), str(limit))
    expect(api.chat().choices[0].message.content)


def test_abort(api):
    api.server.wait_at_rest()
    for _ in range(3):
        stream = api.chat("Tell me a tale.", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        for _, _ in zip(range(3), stream):
            pass
        expect(api.server.metric("sglang:num_running_reqs") >= 1)
        before = time.monotonic()
        stream.close()
        api.server.wait_at_rest()
        expect(time.monotonic() - before < 5, "slow abort")
    quick = api.client.with_options(timeout=0.3)
    try:
        quick.completions.create(model=api.server.name, prompt="x", max_tokens=2000, extra_body={"ignore_eos": True})
        raise AssertionError("expected a timeout")
    except openai.APITimeoutError:
        api.server.wait_at_rest()


def test_health_and_tokenize(api):
    for path in ("/health", "/health_generate", "/version"):
        expect(api.server.request("GET", path)[0] == 200, path)
    text = "Grüße, 世界 \U0001F600"
    tokens = api.server.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
    expect(api.server.request("POST", "/detokenize", {"tokens": tokens})[1]["prompt"] == text)
    expect(api.server.request("GET", "/v1/nothing")[0] == 404)
    expect(api.server.request("GET", "/v1/completions")[0] == 405)


def main():
    arguments = sys.argv[1:]
    only = arguments[arguments.index("-k") + 1] if "-k" in arguments else ""
    paths = arguments[:arguments.index("-k")] if "-k" in arguments else arguments
    program, model = paths + [server_module.DEFAULT_PROGRAM, server_module.DEFAULT_MODEL][len(paths):]
    passed = failed = 0
    with server_module.Server(program, model) as server:
        api = Api(server)
        for name, test in list(globals().items()):
            if not name.startswith("test_") or only not in name:
                continue
            try:
                test(api)
                server.wait_at_rest()
                passed += 1
            except Exception:  # one failure must not hide the others
                failed += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        code = server.stop()
        passed, failed = (passed + 1, failed) if code == 0 else (passed, failed + 1)
        if failed:
            print(f"exit code {code}\n{server.log_text()[-4000:]}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
