"""langchain-openai: python langchain_client.py URL KEY MODEL"""

import sys

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

url, key, model = sys.argv[1:]
llm = ChatOpenAI(
    base_url=f"{url}/v1", api_key=key, model=model, temperature=0, max_tokens=24, max_retries=0
)


@tool
def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


class City(BaseModel):
    """A city."""

    name: str


question = "Name three colours."
llm.invoke(question)  # from now on the prompt is cached, and answers are the same to the bit
answer = llm.invoke(question)
assert answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0
streamed = AIMessageChunk(content="")
for chunk in llm.stream(question, stream_usage=True):
    streamed += chunk
assert streamed.content == answer.content
assert streamed.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]

caller = llm.model_copy(update={"max_tokens": 60})
for choice in ("any", "get_weather"):
    forced = caller.bind_tools(
        [get_weather], tool_choice=choice, parallel_tool_calls=False, strict=True
    )
    forced.invoke("What is the weather in Paris?")
    called = forced.invoke("What is the weather in Paris?")
    (call,) = called.tool_calls
    assert call["name"] == "get_weather"
    assert set(call["args"]) == {"city"}
    streamed = AIMessageChunk(content="")
    for chunk in forced.stream("What is the weather in Paris?"):
        streamed += chunk
    assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [
        (call["name"], call["args"])
    ]

city = caller.with_structured_output(City, method="json_schema").invoke("Name a city.")
assert isinstance(city, City)
