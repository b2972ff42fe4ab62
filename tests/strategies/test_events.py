import json
import math

from strategies.events import EventSink


def test_each_event_is_one_line_with_kind_and_time_on_disk_at_once(tmp_path):
    sink = EventSink(tmp_path / "run" / "events.jsonl")
    sink.emit("round-started", stage="train", label="original", round=1)
    (line,) = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event["kind"] == "round-started" and event["round"] == 1 and event["time"] > 0


def test_a_second_sink_appends(tmp_path):
    for number in range(2):
        sink = EventSink(tmp_path / "events.jsonl")
        sink.emit("note", text=str(number))
        sink.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_the_lines_are_valid_json_whatever_the_loss(tmp_path):
    EventSink(tmp_path / "e").emit("round-finished", loss=math.nan, metric=math.inf, text="line\nbreak")
    (line,) = (tmp_path / "e").read_text().splitlines()
    event = json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert event["loss"] is None and event["metric"] is None and event["text"] == "line\nbreak"


def test_without_a_path_nothing_happens():
    EventSink(None).emit("note", text="nowhere")
