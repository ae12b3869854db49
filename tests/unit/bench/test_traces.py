from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench.traces import read_lengths, read_texts, read_trace
from octavo.bench.workload import Arrival
from octavo.errors import ConfigError

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_csv_of_seconds_is_read_by_its_columns_and_starts_at_zero(tmp_path: Path) -> None:
    path = written(tmp_path, "client,arrival_s,prompt_tokens,output_tokens\n1,10.5,30,4\n2,11.0,7,1\n")
    assert read_trace(path) == [Arrival(0.0, 30, 4), Arrival(0.5, 7, 1)]
    assert read_trace(path, limit=1) == [Arrival(0.0, 30, 4)]
    assert read_lengths(path) == [(30, 4), (7, 1)]


def test_json_lines_of_milliseconds_keep_their_blocks_and_are_put_in_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"timestamp": 3000, "input_length": 900, "output_length": 5, "hash_ids": [0, 7]}\n\n'
        '{"timestamp": 1000, "input_length": 20, "output_length": 6, "hash_ids": [0]}\n',
    )
    assert read_trace(path) == [Arrival(0.0, 20, 6, (0,)), Arrival(2.0, 900, 5, (0, 7))]


def test_a_csv_of_dates_is_read_as_azure_publishes_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    )
    first, second = read_trace(path)
    assert (first.at_seconds, first.num_prompt_tokens, second.num_output_tokens) == (0.0, 374, 109)
    assert second.at_seconds == pytest.approx(4.314579, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no arrivals"),
        ("a,b\n1,2\n", "line 2: there is none of the columns prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,x,1\n", "line 2: 'x' is not a number"),
        ("arrival_s,prompt_tokens,output_tokens\n0,0,1\n", "line 2: 0 is no number of tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1.5,1\n", "line 2: 1.5 is no number of tokens"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", "line 2: nan is not a number to go by"),
        ("prompt_tokens,output_tokens\n1,1\n", "none of the columns timestamp"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}\n', "hash_ids is not a list"),
        ('{"timestamp": 1}\n{oops\n', "line 2: not a JSON object"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    if "line 2: not a JSON" in words:
        path.write_text('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{oops\n')
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_trace(tmp_path / "bytes")


def test_texts_are_found_under_their_usual_names(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"question": "how many?"}\n{"turns": ["first", "second"]}\n{"prompt": "p", "text": "t"}\n'
        '{"messages": [{"role": "user", "content": "hello"}]}\n',
    )
    assert read_texts(path) == ["how many?", "first", "p", "hello"]
    with pytest.raises(ConfigError, match="line 1: the prompt is not a text"):
        read_texts(written(tmp_path, '{"prompt": 3}\n'))


@pytest.mark.parametrize(
    ("name", "count"),
    [("azure_2023_code.csv", 7_491), ("mooncake_synthetic.jsonl", 2_319), ("servegen_chat_1h.csv", 10_959)],
)
def test_published_traces_are_read_as_they_are(name: str, count: int) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is third-party data that is not part of the repository")
    arrivals = read_trace(path)
    assert len(arrivals) == count
    assert arrivals[0].at_seconds == 0.0
    assert any(arrival.blocks for arrival in arrivals) == name.startswith("mooncake")
