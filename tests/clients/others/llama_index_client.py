"""LlamaIndex's client of OpenAI-like servers: python llama_index_client.py URL KEY MODEL"""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, key, model = sys.argv[1:]
llm = OpenAILike(
    api_base=f"{url}/v1",
    api_key=key,
    model=model,
    temperature=0,
    max_tokens=24,
    max_retries=0,
    is_chat_model=True,
    is_function_calling_model=True,
)


def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


messages = [ChatMessage(role="user", content="Name three colours.")]
llm.chat(messages)  # from now on the prompt is cached, and answers are the same to the bit
answer = llm.chat(messages).message.content
assert answer
assert "".join(part.delta or "" for part in llm.stream_chat(messages)) == answer
assert llm.complete("1, 2, 3,").text

tool = FunctionTool.from_defaults(get_weather)
reply = llm.chat_with_tools(
    [tool],
    user_msg="What is the weather in Paris?",
    tool_required=True,
    allow_parallel_tool_calls=False,
)
(call,) = llm.get_tool_calls_from_response(reply)
assert call.tool_name == "get_weather"
assert "city" in call.tool_kwargs
