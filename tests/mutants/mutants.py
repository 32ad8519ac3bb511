"""The mutants: for each safeguard that guards data, what takes it out and the tests that miss it.

Law: a mutant is of a function, which is imported here, and of a place in its syntax tree (`edits`).
So a renamed variable or another layout changes nothing, and a renamed or moved function is an
import that fails, here and in `make lint`. `run` runs them.
"""

import ast
import fcntl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.catalog import fetch
from binlog2s3.archive.codec import _whole, check_key, parse
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import (
    _barrier,
    gtids_break,
    is_unlogged_between,
    line_binlogs,
    missing_binlogs,
)
from binlog2s3.archive.reader import Readable, _Reading
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.compression import _ZstdOutput
from binlog2s3.binlog.events import made_up_size
from binlog2s3.binlog.executed import _StateEnd
from binlog2s3.binlog.fast import leap
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.binlog.zone import differs
from binlog2s3.drill.checks import check_statements
from binlog2s3.durable import write_json
from binlog2s3.private import check_inner
from binlog2s3.recover.branches import Branches
from binlog2s3.recover.export import _lineage_of
from binlog2s3.recover.extract import _PieceReader
from binlog2s3.recover.goal import Search
from binlog2s3.recover.listen import listen
from binlog2s3.recover.notes import Notes
from binlog2s3.recover.origin import Origin, _has_at, unlogged_at, unnamed_before
from binlog2s3.recover.pieces import PieceBuilder
from binlog2s3.recover.preflight import _obstacles, _source_problems, problems
from binlog2s3.recover.seam import is_executed
from binlog2s3.recover.target import prove
from binlog2s3.recover.time_zones import _Reader
from binlog2s3.restore.by_command import refuse_values
from binlog2s3.restore.command import _Restore
from binlog2s3.restore.directory import DataDirectory
from binlog2s3.restore.scratch import version_of
from binlog2s3.retain.choose import given_up
from binlog2s3.retain.prune import Prune
from binlog2s3.serve.directory import Directory, _manifest, _whole_file, recovered
from binlog2s3.serve.line import first_open
from binlog2s3.server.connection import _auth_plugins, _connect
from binlog2s3.server.login import Login, _resolve, _ssl_mode
from binlog2s3.server.mysqlbinlog import _options
from binlog2s3.store.contract import Store
from binlog2s3.store.integrity import Integrity
from binlog2s3.store.requests import Requests
from binlog2s3.store.s3 import S3Store
from binlog2s3.store.versions import ChosenVersions, Hold
from binlog2s3.stream.compare import Finder
from binlog2s3.stream.continuation import KnownEnd
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.decide import _archived, _chunks, _growing, decide
from binlog2s3.stream.job import Look, PutEntry, TakeUp, Verify
from binlog2s3.stream.remote import (
    Held,
    RemoteBinlog,
    _CheckedSlice,
    _delete_inside,
    _list_chunks,
    _ReadBack,
    holds,
    put_entry,
    put_once,
)
from binlog2s3.stream.resume import Continuation
from binlog2s3.stream.spool import Spool, SpoolRun
from binlog2s3.stream.start import _Bucket, _checked, _has_begun, _is_below_floor
from binlog2s3.stream.tail import Tailer, Track
from binlog2s3.stream.tracking import Tracking, _end
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.writer import Writer, _put_turn
from binlog2s3.workers import both
from tests.mutants.edits import (
    Edit,
    always,
    answers,
    arithmetic,
    becomes,
    call,
    choice,
    compared,
    comparison,
    gone,
    keyword,
    name_of,
    never,
    operand,
    part,
    reads,
    receiver,
    returned,
    when,
)


class Promise(Enum):
    """What is broken without the safeguard: a document, and its words in bold there."""

    DURABLE = ("docs/reliability.md", "What is durable stays readable.")
    FILE = ("docs/reliability.md", "An archived binlog is the server's file")
    AHEAD = (
        "docs/reliability.md",
        "`durable` and `covered_until` in the writer's object are never ahead",
    )
    SPOOL = ("docs/reliability.md", "What is not durable is still in the spool or on the source")
    HISTORIES = ("docs/reliability.md", "Two histories are never spliced.")
    MEMORY = ("docs/reliability.md", "The bucket is the only memory.")
    RECOVERY = (
        "docs/reliability.md",
        "A recovery reaches exactly what was asked for, or is refused",
    )
    SECRETS = ("SECURITY.md", "Secrets.")
    TLS = ("SECURITY.md", "Passwords.")
    BUCKET = ("SECURITY.md", "The bucket is not trusted.")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A safeguard of a promise, the tests that must go red without it, and what takes it out.

    `changes`: functions, and what happens to each; one may be there more than once.
    """

    name: str
    promise: Promise
    safeguard: str
    tests: tuple[str, ...]
    changes: tuple[tuple[Any, Edit], ...]


MUTANTS = (
    Mutant(
        "lineage-before-bytes",
        Promise.DURABLE,
        "lineage.json is put before anything else of its lineage.",
        (
            "tests/unit/stream/test_tracking.py::test_nothing_is_uploaded_before_its_lineage_is_described",
        ),
        ((Tracking._put, answers("True")),),
    ),
    Mutant(
        "chunks-compared",
        Promise.DURABLE,
        "A chunk that another process left counts only after its checksum was compared with "
        "the source's bytes.",
        ("tests/unit/stream/test_job.py::test_what_was_not_compared_is_not_reported",),
        ((Look.learned, operand(arithmetic(1, of=2), 1)),),
    ),
    Mutant(
        "chunk-deletion-acknowledged",
        Promise.DURABLE,
        "Only chunks that were acknowledged, or compared, let others go.",
        (
            "tests/unit/stream/test_decide.py::test_chunks_that_were_not_compared_are_not_put_again_nor_deleted",
        ),
        ((_chunks, reads("chunks", name_of(Held.all_chunks))),),
    ),
    Mutant(
        "chunk-as-long-as-named",
        Promise.DURABLE,
        "An object that has not as many bytes as its name says is no chunk.",
        (
            "tests/unit/stream/test_uploader.py::test_an_object_shorter_than_its_name_says_is_no_chunk",
        ),
        ((_list_chunks, always(when())),),
    ),
    Mutant(
        "entry-before-clearing",
        Promise.DURABLE,
        "Chunks and unfinished uploads are deleted only after the entry is written.",
        ("tests/unit/stream/test_decide.py::test_what_to_do_next_without_chunks",),
        ((_archived, never(when())),),
    ),
    Mutant(
        "clear-inside-only",
        Promise.DURABLE,
        "Of an archived binlog's chunks only those inside it are deleted.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_chunk_that_reaches_beyond_the_archived_binlog_stays",
        ),
        ((_delete_inside, always(comparison())),),
    ),
    Mutant(
        "delete-errors",
        Promise.DURABLE,
        "A key that the store did not delete, though it said 200, is an error.",
        ("tests/contract/test_store.py::test_a_key_that_was_not_deleted_is_an_error",),
        ((Requests.delete_objects, never(when())),),
    ),
    Mutant(
        "no-need-is-pruned",
        Promise.DURABLE,
        "prune keeps what a kept base backup needs.",
        ("tests/unit/retain/test_prune.py::test_every_moment_of_the_window_is_reachable",),
        ((given_up, never(part(when(2, of=8), 2, of=2))),),
    ),
    Mutant(
        "a-grace-before-deletion",
        Promise.DURABLE,
        "prune deletes only below a floor that is older than the grace.",
        ("tests/unit/retain/test_prune.py::test_a_window_of_ten_days",),
        ((Prune._graced, operand(arithmetic(), 1)),),
    ),
    Mutant(
        "a-forged-floor-deletes-nothing",
        Promise.DURABLE,
        "prune deletes only what the same run gives up, whatever floors say.",
        ("tests/unit/retain/test_prune.py::test_a_forged_floor_deletes_and_hides_nothing",),
        ((Prune._floors, always(comparison(1, of=2))),),
    ),
    Mutant(
        "object-lock-is-asked-first",
        Promise.DURABLE,
        "prune deletes nothing that Object Lock keeps: a delete would only hide it.",
        ("tests/unit/retain/test_prune.py::test_what_object_lock_keeps_is_not_deleted",),
        ((Prune._locked, becomes(call(Hold.keeps), "False")),),
    ),
    Mutant(
        "of-versions-that-differ-none-is-taken",
        Promise.RECOVERY,
        "Of versions of an object that differ, none is read because it is the oldest.",
        ("tests/unit/archive/test_evidence.py::test_two_documents_under_one_key",),
        ((ChosenVersions._choose, always(when(5, of=10))),),
    ),
    Mutant(
        "a-binlog-is-the-one-of-its-entry",
        Promise.RECOVERY,
        "Of versions of a binlog that differ, the one is read that its entry describes.",
        (
            "tests/unit/archive/test_evidence.py::test_an_entry_older_than_the_one_before_it_does_not_count",
        ),
        ((ChosenVersions._is, becomes(returned(2, of=2), "True")),),
    ),
    Mutant(
        "an-order-that-was-forged-decides-nothing",
        Promise.RECOVERY,
        "An entry below a floor says nothing of when the one after it was written.",
        ("tests/unit/archive/test_evidence.py::test_order_is_not_forged_where_nothing_is_kept",),
        ((Evidence.before, never(when(3, of=4))),),
    ),
    Mutant(
        "no-entry-where-another-one-is",
        Promise.RECOVERY,
        "No entry is written where readers could take another one for it.",
        (
            "tests/unit/stream/test_uploader.py::test_an_entry_that_somebody_planted_ends_the_history",
        ),
        ((put_entry, never(when(2, of=4))),),
    ),
    Mutant(
        "something-stays-recoverable",
        Promise.DURABLE,
        "prune is refused if no registered base backup could be recovered afterwards.",
        ("tests/unit/retain/test_prune.py::test_without_base_backups_it_is_refused",),
        ((Prune._check, always(when(1, of=3))),),
    ),
    Mutant(
        "chunks-of-the-current-lineage-stay",
        Promise.DURABLE,
        "prune deletes no chunk of the current lineage: it may be the only copy of durable bytes.",
        (
            "tests/unit/retain/test_prune.py::test_an_unfinished_binlog_of_the_current_lineage_stays",
        ),
        ((Prune._abandoned, always(comparison(3, of=3))),),
    ),
    Mutant(
        "what-is-needed-is-asked-behind-the-floors",
        Promise.DURABLE,
        "prune deletes nothing that a backup needs since its floors were raised.",
        (
            "tests/unit/retain/test_prune.py::test_a_backup_that_is_needed_since_the_floors_were_raised_is_kept",
        ),
        ((Prune._do, gone(call(Prune._refuse_changed))),),
    ),
    Mutant(
        "a-floor-of-another-binlog",
        Promise.DURABLE,
        "prune deletes nothing if the floor that it has to write is there and is another one.",
        ("tests/unit/retain/test_prune.py::test_a_forged_floor_in_the_way_deletes_nothing",),
        ((Prune._raise_floor, never(when())),),
    ),
    Mutant(
        "event-crc",
        Promise.FILE,
        "An event counts only if its CRC32 is right.",
        ("tests/property/test_scanner.py::test_every_flipped_byte_is_seen",),
        (
            (Scanner._walk, never(part(when(1, of=8), 4, of=4))),
            (Scanner._take_event, never(when(3, of=8))),
            (leap, never(part(when(1, of=13), 5, of=5))),
            (leap, never(part(when(5, of=13), 5, of=5))),
        ),
    ),
    Mutant(
        "event-chain",
        Promise.FILE,
        "An event counts only if it ends where its header says: a hole in the file shows, "
        "with checksums or without.",
        ("tests/property/test_scanner.py::test_an_event_that_is_missing_is_seen",),
        (
            (Scanner._walk, never(when(2, of=8))),
            (Scanner._take_header, never(when(5, of=5))),
            (leap, never(part(when(1, of=13), 4, of=5))),
            (leap, never(part(when(5, of=13), 4, of=5))),
        ),
    ),
    Mutant(
        "only-checked-bytes",
        Promise.FILE,
        "No byte leaves the spool beyond the end of the last event that was checked.",
        (
            "tests/unit/stream/test_safeguards.py::test_bytes_of_an_event_that_is_not_whole_stay_in_the_spool",
        ),
        ((BinlogReading.size, reads("event_end", name_of(Scanner.position))),),
    ),
    Mutant(
        "first-event-at-the-position",
        Promise.FILE,
        "The first event of a run must begin at the position that was asked for.",
        ("tests/unit/stream/test_tail.py::test_a_run_that_begins_elsewhere_is_damage",),
        ((made_up_size, never(when(3, of=4))),),
    ),
    Mutant(
        "torn-at-the-next-file",
        Promise.FILE,
        "A file that ends in the middle of an event while the run has gone on to the next one "
        "is damage.",
        (
            "tests/unit/stream/test_tail.py::test_the_next_file_follows_only_after_the_end_of_this_one",
        ),
        ((Tailer._finish, never(when(3, of=3))),),
    ),
    Mutant(
        "chunk-bytes-as-checked",
        Promise.FILE,
        "What is sent must still be the bytes that were checked: the checksum of then goes along.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_spool_that_changes_while_it_is_sent_is_refused_and_told",
        ),
        ((RemoteBinlog.put_chunk, keyword(call(Store.put), crc64=None)),),
    ),
    Mutant(
        "spool-compared-before-sending",
        Promise.FILE,
        "Before each attempt to send it the spool is compared with what was checked: some "
        "stores compare nothing.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_spool_that_changed_after_it_was_read_is_not_sent",
        ),
        ((_CheckedSlice.open, never(when())),),
    ),
    Mutant(
        "verify-before-entry",
        Promise.FILE,
        "The entry is written only after what lies under the key was compared with our bytes.",
        ("tests/unit/stream/test_job.py::test_an_object_of_other_bytes_is_never_described",),
        ((decide, becomes(call(Verify), f"{name_of(PutEntry)}()")),),
    ),
    Mutant(
        "verify-crc",
        Promise.FILE,
        "The object is compared by its whole CRC64NVME where the store keeps one.",
        ("tests/unit/stream/test_job.py::test_an_object_of_other_bytes_is_never_described",),
        ((holds, always(comparison(3, of=5))),),
    ),
    Mutant(
        "verify-without-crc",
        Promise.FILE,
        "Without a checksum of the whole, the object's ETag must be that of our parts, else "
        "it is read back.",
        ("tests/unit/stream/test_job.py::test_an_object_of_other_bytes_is_never_described",),
        ((holds, always(comparison(5, of=5))),),
    ),
    Mutant(
        "no-overwrite-whole",
        Promise.FILE,
        "A small binlog's object is put with If-None-Match: what lies there is never replaced.",
        (
            "tests/unit/stream/test_safeguards.py::test_what_appears_under_the_key_meanwhile_is_not_replaced",
        ),
        ((RemoteBinlog.put_whole, keyword(call(Store.put), if_absent="False")),),
    ),
    Mutant(
        "no-overwrite-complete",
        Promise.FILE,
        "An upload is completed with If-None-Match.",
        (
            "tests/unit/stream/test_safeguards.py::test_what_appears_under_the_key_meanwhile_is_not_replaced",
        ),
        ((RemoteBinlog.complete, keyword(call(Store.complete_upload), if_absent="False")),),
    ),
    Mutant(
        "no-overwrite-entry",
        Promise.FILE,
        "The first entry stands: it is put with If-None-Match.",
        ("tests/unit/stream/test_safeguards.py::test_the_first_entry_stands",),
        ((put_entry, keyword(call(Store.put), if_absent="False")),),
    ),
    Mutant(
        "entry-read-back",
        Promise.FILE,
        "An entry that was there already must describe this binlog, before anything is deleted.",
        (
            "tests/unit/stream/test_safeguards.py::test_an_entry_of_another_binlog_is_not_taken_for_ours",
        ),
        ((put_entry, never(when(4, of=4))),),
    ),
    Mutant(
        "parts-taken-up-compared",
        Promise.FILE,
        "A part of an unfinished upload is taken up only if its size and checksum are those "
        "of our bytes.",
        ("tests/unit/stream/test_safeguards.py::test_a_part_of_other_bytes_is_not_taken_up",),
        ((TakeUp.learned, always(choice())),),
    ),
    Mutant(
        "copied-part-compared",
        Promise.FILE,
        "A part that the store made of a chunk must have our bytes: its ETag says so, or the "
        "chunk's checksum, or the chunk is read.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_chunk_that_was_written_over_does_not_become_a_part",
        ),
        ((RemoteBinlog.copy_part, never(when(3, of=3))),),
    ),
    Mutant(
        "complete-size",
        Promise.FILE,
        "Complete returns only if the object has the size that was sent.",
        ("tests/contract/test_store.py::test_another_whole_than_was_computed_is_noticed",),
        (
            (S3Store.complete_upload, never(when(1, of=4))),
            (S3Store.complete_upload, never(when(3, of=4))),
        ),
    ),
    Mutant(
        "read-chunk-crc",
        Promise.FILE,
        "Every chunk that is read is checked against the CRC64NVME in its name.",
        ("tests/unit/archive/test_reader.py::test_a_damaged_chunk_is_named",),
        ((_Reading._try, never(when(1, of=3))),),
    ),
    Mutant(
        "read-archived-crc",
        Promise.FILE,
        "An archived binlog that is read whole is compared with its entry.",
        ("tests/unit/archive/test_reader.py::test_an_archived_binlog_that_is_damaged",),
        ((_Reading._note, never(when())),),
    ),
    Mutant(
        "claimed-once-durable",
        Promise.AHEAD,
        "A moment is claimed only once the server's position of then is durable.",
        ("tests/unit/stream/test_coverage.py::test_the_clock_is_claimed_up_to_the_offset",),
        ((Coverage._claim, always(comparison(1, of=2))),),
    ),
    Mutant(
        "durable-in-order",
        Promise.AHEAD,
        "Durable goes on only behind a binlog that is whole in the bucket.",
        ("tests/unit/stream/test_coverage.py::test_what_lies_behind_an_open_binlog_waits_for_it",),
        ((Coverage._go_on, never(when(1, of=3))),),
    ),
    Mutant(
        "claimed-behind-what-was-given-up",
        Promise.AHEAD,
        "A binlog that was given up is whole only once its lineage goes on behind it.",
        (
            "tests/unit/stream/test_tracking.py::test_what_a_binlog_has_gained_is_not_in_while_it_is_read_again",
        ),
        ((Coverage._is_left, always(comparison(2, of=2))),),
    ),
    Mutant(
        "spool-lock",
        Promise.SPOOL,
        "One streamer holds a spool.",
        ("tests/unit/stream/test_spool.py::test_one_streamer_holds_it",),
        ((Spool.__init__, gone(call(fcntl.flock))),),
    ),
    Mutant(
        "notes-whole",
        Promise.SPOOL,
        "run.json is written whole or not at all: what was there before holds until then.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_note_that_fails_half_way_leaves_the_one_before",
        ),
        ((write_json, receiver(call(Path.with_name))),),
    ),
    Mutant(
        "release-by-lineage",
        Promise.SPOOL,
        "A local copy is deleted only in runs that are known to be of the archived lineage.",
        (
            "tests/unit/stream/test_spool.py::test_release_deletes_every_runs_copy_of_this_lineage_alone",
        ),
        ((Spool.release, never(when(1, of=2))),),
    ),
    Mutant(
        "only-what-is-in-the-bucket-leaves",
        Promise.SPOOL,
        "A file leaves a full spool only once acknowledged or compared chunks have all of it.",
        (
            "tests/unit/stream/test_safeguards.py::test_what_is_not_in_the_bucket_yet_stays_in_a_full_spool",
        ),
        ((Uploader._relieve, never(part(when(3, of=5), 4, of=4))),),
    ),
    Mutant(
        "names-are-read",
        Promise.SPOOL,
        "Before the spool's bytes go, the chunks that another process has put are read.",
        (
            "tests/unit/stream/test_uploader.py::test_the_last_copy_is_not_given_up_for_a_chunk_that_only_has_its_name",
        ),
        ((_growing, never(when(2, of=3))),),
    ),
    Mutant(
        "names-are-read-in-a-full-spool",
        Promise.SPOOL,
        "A file leaves a full spool only once the chunks that another process has put were read.",
        (
            "tests/unit/stream/test_uploader.py::test_nothing_leaves_the_spool_that_a_request_may_still_read",
        ),
        ((Uploader._relieve, never(part(when(3, of=5), 3, of=4))),),
    ),
    Mutant(
        "live-run-stays",
        Promise.SPOOL,
        "The directory into which mysqlbinlog writes stays, though it has no binlog yet.",
        (
            "tests/unit/stream/test_spool.py::test_release_removes_runs_that_are_empty_once_they_have_ended",
        ),
        ((Spool.sweep, always(part(when(), 1, of=2))),),
    ),
    Mutant(
        "runs-in-order",
        Promise.MEMORY,
        "A start reads the runs of the spool in the order in which they began.",
        ("tests/unit/stream/test_spool.py::test_runs_are_ordered_though_the_clock_was_set_back",),
        ((Spool._next_name, never(when())),),
    ),
    Mutant(
        "nothing-leaves-that-is-read",
        Promise.SPOOL,
        "No file leaves the spool while a request may still read it.",
        ("tests/unit/stream/test_uploader.py::test_all_is_durable_and_a_request_still_reads_it",),
        ((Uploader._relieve, never(part(when(1, of=5), 4, of=4))),),
    ),
    Mutant(
        "below-the-floor-proved",
        Promise.FILE,
        "What is read back from the bucket is sent as a whole only if it is what was scanned.",
        (
            "tests/unit/stream/test_safeguards.py::test_a_body_from_the_bucket_never_comes_whole_if_it_is_wrong",
        ),
        ((_ReadBack.proved, never(when(2, of=2))),),
    ),
    Mutant(
        "overtaken-by-the-same",
        Promise.SPOOL,
        "The bucket's bytes replace the spool's only if those are, by checksum, their beginning.",
        ("tests/unit/stream/test_start.py::test_a_spool_that_another_writer_has_overtaken",),
        ((_Bucket.instead_of, never(when(5, of=5))),),
    ),
    Mutant(
        "spare-is-proved",
        Promise.SPOOL,
        "A start deletes a file only if all its bytes are, by checksum, in the bucket.",
        ("tests/unit/stream/test_start.py::test_a_run_goes_on_where_the_bucket_ends",),
        ((_is_below_floor, always(comparison(3, of=3))),),
    ),
    Mutant(
        "freed-is-no-binlog",
        Promise.SPOOL,
        "What a program before 0.3 freed in a spool's file, zeros, is never taken for the binlog.",
        ("tests/unit/stream/test_start.py::test_what_is_above_an_old_floor_is_taken",),
        ((SpoolRun.start_of, never(when())),),
    ),
    Mutant(
        "freed-is-of-somebody",
        Promise.SPOOL,
        "A start keeps a run of which the beginning was freed, though no event says whose it is.",
        ("tests/unit/stream/test_start.py::test_what_nothing_proves_above_an_old_floor_is_left",),
        ((_has_begun, never(part(returned(), 1, of=2))),),
    ),
    Mutant(
        "start-needs-checksums",
        Promise.SPOOL,
        "A spool without event checksums is not believed at a start: nothing in it was synced.",
        (
            "tests/unit/stream/test_start.py::test_without_event_checksums_the_spool_is_not_believed",
        ),
        ((_checked, never(when(2, of=4))),),
    ),
    Mutant(
        "overlap-compared",
        Promise.HISTORIES,
        "What a run brings again is compared with what passed before; other bytes are another "
        "history.",
        ("tests/unit/stream/test_tail.py::test_other_bytes_in_the_overlap_are_another_history",),
        ((Tailer._read_again, never(when(3, of=4))),),
    ),
    Mutant(
        "overlap-whole",
        Promise.HISTORIES,
        "A run that goes on to the next file before it has brought the whole overlap is "
        "another history.",
        ("tests/unit/stream/test_tail.py::test_a_run_that_ends_before_the_overlap_does",),
        ((Tailer._finish, never(when(1, of=3))),),
    ),
    Mutant(
        "closed-next-file-alone",
        Promise.HISTORIES,
        "The run's next file closes a binlog only if its previous GTIDs are those at our end.",
        ("tests/unit/stream/test_tail.py::test_what_closes_a_binlog",),
        ((Track.judge, reads("FOLLOWED", "PASSED")),),
    ),
    Mutant(
        "closed-gtids-equal",
        Promise.HISTORIES,
        "History goes on in the next file only if its previous GTIDs are just those at our end.",
        ("tests/unit/stream/test_tail.py::test_other_gtids_do_not_close",),
        ((Tailer._judge_history, always(part(when(2, of=2), 2, of=2))),),
    ),
    Mutant(
        "closed-anonymous",
        Promise.HISTORIES,
        "Transactions without a GTID prove nothing about what follows.",
        ("tests/unit/stream/test_tail.py::test_anonymous_transactions_prove_nothing",),
        ((BinlogReading.gtids_after, never(choice())),),
    ),
    Mutant(
        "no-overwrite-lineage",
        Promise.HISTORIES,
        "lineage.json is written where nothing lies, or where the same lies.",
        ("tests/unit/stream/test_tracking.py::test_an_answer_that_was_lost_is_no_second_lineage",),
        ((put_once, keyword(call(Store.put), if_absent="False")),),
    ),
    Mutant(
        "a-lineage-ends-where-rows-were-left-out",
        Promise.HISTORIES,
        "A binlog before which the source was without one begins another lineage.",
        (
            "tests/unit/stream/test_tracking.py::test_a_start_of_the_server_behind_a_rotation_is_not_taken_in",
            "tests/unit/stream/test_tracking.py::test_what_was_seen_counts_where_the_binlogs_show_nothing",
        ),
        ((Tracking._left_out, answers("None")),),
    ),
    Mutant(
        "a-source-that-may-ignore-errors-leaves-a-gap",
        Promise.HISTORIES,
        "Only a source that says that it ends itself joins exactly behind a rotation that failed.",
        (
            "tests/unit/stream/test_tracking.py::test_a_mysql_that_ends_itself_in_a_rotation_leaves_nothing_out",
        ),
        ((Tracking._left_out, becomes(call(all), "True")),),
    ),
    Mutant(
        "binlogs-show-rows-left-out",
        Promise.RECOVERY,
        "A recovery does not pass from a rotation to a binlog that a start of the server began.",
        (
            "tests/unit/recover/test_plan.py::test_an_archive_of_an_older_version_has_them_within_a_lineage",
        ),
        ((is_unlogged_between, answers("False")),),
    ),
    Mutant(
        "rows-without-gtids-are-not-assumed",
        Promise.RECOVERY,
        "GTIDs that end where rows were left out do not say that a target has those rows.",
        ("tests/unit/recover/test_plan.py::test_a_backup_that_ends_exactly_there_is_refused",),
        ((unlogged_at, answers("None")),),
    ),
    Mutant(
        "transactions-without-gtids-are-not-assumed",
        Promise.RECOVERY,
        "GTIDs that end before transactions without one do not say that a target has those.",
        (
            "tests/unit/recover/test_plan.py::test_no_binlog_without_gtids_is_passed_over_behind_empty_ones",
        ),
        ((unnamed_before, answers("None")),),
    ),
    Mutant(
        "a-turn-is-taken-once",
        Promise.HISTORIES,
        "A turn is put with If-None-Match: a late request of a dead streamer changes no history.",
        ("tests/unit/stream/test_writer.py::test_a_turn_that_arrives_late_counts_less",),
        ((_put_turn, keyword(call(Store.put), if_absent="False")),),
    ),
    Mutant(
        "who-is-superseded-takes-no-turn",
        Promise.HISTORIES,
        "Before each turn it is looked whether somebody has taken over.",
        ("tests/unit/stream/test_writer.py::test_who_has_been_superseded_takes_no_turn",),
        (
            (Writer._last_turn, becomes(call(Writer.look), "None")),
            (Writer._last_turn, becomes(call(both), "(self._catalog.turn(self._turn), None)")),
        ),
    ),
    Mutant(
        "writers-are-looked-at-behind-a-successors-turn",
        Promise.HISTORIES,
        "Who took a turn of a greater rank had claimed before: the writers are listed behind it.",
        ("tests/unit/stream/test_writer.py::test_a_turn_is_read_beside_the_writers",),
        ((Writer._last_turn, becomes(call(Writer.look), "None")),),
    ),
    Mutant(
        "older-writer-stops",
        Promise.HISTORIES,
        "A writer that sees a greater one stops.",
        ("tests/unit/stream/test_writer.py::test_the_last_to_claim_is_the_writer",),
        ((Writer._give_way_to_greater, never(when())),),
    ),
    Mutant(
        "chunk-of-another-history",
        Promise.HISTORIES,
        "A chunk that holds other bytes than the source has ends the stream of that history: "
        "it is neither used nor deleted.",
        ("tests/unit/stream/test_job.py::test_a_chunk_of_another_history_ends_it",),
        ((RemoteBinlog.compare, always(when(1, of=5))),),
    ),
    Mutant(
        "chunk-read-twice",
        Promise.HISTORIES,
        "A chunk that came from the store wrong once is not deleted: nobody else may have its "
        "bytes.",
        ("tests/unit/stream/test_safeguards.py::test_a_chunk_that_came_wrong_once_is_not_deleted",),
        ((RemoteBinlog.compare, never(when(2, of=5))),),
    ),
    Mutant(
        "nothing-behind-a-fork",
        Promise.HISTORIES,
        "Behind bytes of another history in the bucket nothing is archived.",
        (
            "tests/unit/stream/test_uploader.py::test_nothing_is_archived_behind_what_contradicts_the_bucket",
        ),
        ((Uploader._leave_from, compared(comparison(2, of=2), ast.Eq())),),
    ),
    Mutant(
        "known-stays-known",
        Promise.RECOVERY,
        "While a binlog is read again, the lineage that may follow it follows all that is known.",
        (
            "tests/unit/stream/test_safeguards.py::test_what_is_read_again_does_not_shorten_what_is_known",
        ),
        ((_end, always(when(3, of=3))),),
    ),
    Mutant(
        "forgotten-says-nothing",
        Promise.AHEAD,
        "An answer about a binlog that was forgotten moves nothing.",
        (
            "tests/unit/stream/test_uploader.py::test_an_answer_of_a_binlog_that_was_forgotten_says_nothing",
        ),
        ((Uploader.take, never(when(3, of=12))),),
    ),
    Mutant(
        "another-server-refused",
        Promise.HISTORIES,
        "A server that lacks what is archived is refused: a --source was copied.",
        ("tests/unit/stream/test_resume.py::test_another_server_is_refused",),
        ((Continuation._another, never(when(1, of=3))),),
    ),
    Mutant(
        "another-node-is-proved",
        Promise.HISTORIES,
        "A server with the ids of the archive's and other bytes joins exactly only if it is proved "
        "to have the archive's transactions: one that was reset uses its GTIDs again.",
        ("tests/unit/stream/test_resume.py::test_another_node_of_a_cluster",),
        ((Continuation._another_node, never(when(3, of=3))),),
    ),
    Mutant(
        "another-node-by-what-it-wrote",
        Promise.HISTORIES,
        "Transactions with equal GTIDs are the same only if their rows and times are.",
        ("tests/unit/stream/test_compare.py::test_the_end_of_a_history_at_another_node",),
        ((Finder.has_end, never(when(5, of=5))),),
    ),
    Mutant(
        "read-seams",
        Promise.HISTORIES,
        "Where one chunk follows another, the bytes that both have are compared.",
        ("tests/unit/archive/test_reader.py::test_chunks_that_disagree_are_damage",),
        ((_Reading._try, never(choice(4, of=5))),),
    ),
    Mutant(
        "unknown-join-not-crossed",
        Promise.HISTORIES,
        "A join that nothing proves is not crossed, whatever is allowed.",
        ("tests/unit/archive/test_history.py::test_what_cannot_be_proved_is_not_crossed",),
        ((_barrier, never(when(2, of=5))),),
    ),
    Mutant(
        "start-gtids-follow",
        Promise.MEMORY,
        "What a start takes from the spool begins with the GTIDs that the archive ends with.",
        ("tests/unit/stream/test_start.py::test_a_binlog_that_does_not_follow_is_left",),
        ((KnownEnd.contradiction, never(when(4, of=4))),),
    ),
    Mutant(
        "gap-not-crossed",
        Promise.RECOVERY,
        "A recovery crosses no gap, unless it is allowed.",
        ("tests/unit/recover/test_plan.py::test_a_gap_is_not_crossed_unless_it_is_allowed",),
        ((Search.leave_out, never(when())),),
    ),
    Mutant(
        "missing-binlog-breaks",
        Promise.RECOVERY,
        "A recovery crosses no place where a binlog is missing.",
        ("tests/unit/recover/test_plan.py::test_a_binlog_that_is_not_there_breaks_history",),
        ((line_binlogs, always(choice(3, of=4))),),
    ),
    Mutant(
        "dead-branch-refused",
        Promise.RECOVERY,
        "A target that has what was lost in a fail-over is refused.",
        ("tests/unit/recover/test_plan.py::test_a_target_of_a_dead_branch_is_told_which",),
        ((Origin.check_target, never(when(1, of=4))),),
    ),
    Mutant(
        "gtids-of-two-histories",
        Promise.RECOVERY,
        "A target whose GTIDs could be of either of two histories is refused.",
        ("tests/unit/recover/test_plan.py::test_an_unknown_join_is_never_crossed",),
        ((Origin.check, never(when(3, of=3))),),
    ),
    Mutant(
        "exactly-these-gtids-at-this-place",
        Promise.RECOVERY,
        "A backup is of a lineage by its place only if the binlog has exactly its GTIDs there.",
        (
            "tests/unit/recover/test_origin.py::test_gtids_that_are_not_those_of_the_place_prove_nothing",
        ),
        ((_has_at, becomes(returned(5, of=5), "True")),),
    ),
    Mutant(
        "zone-of-a-statement",
        Promise.RECOVERY,
        "A statement that was executed in the zone SYSTEM counts as one that depends on it.",
        ("tests/unit/recover/test_time_zones.py::test_statements_that_depend_on_it",),
        ((_Reader._begin, never(when(2, of=3))),),
    ),
    Mutant(
        "zones-by-their-offsets",
        Promise.RECOVERY,
        "Two time zones are the same only if their offsets are, on all days.",
        ("tests/unit/recover/test_time_zones.py::test_zones_that_change_on_other_days_differ",),
        ((differs, never(when())),),
    ),
    Mutant(
        "gtid-at-two-places",
        Promise.RECOVERY,
        "A MariaDB GTID that is at two places of a history does not tell what was executed.",
        ("tests/unit/serve/test_places.py::test_what_was_used_twice",),
        ((_StateEnd._single, never(when())),),
    ),
    Mutant(
        "note-of-this-server",
        Promise.RECOVERY,
        "A note that came out of a dump is not believed.",
        ("tests/integration/test_target.py::test_a_note_of_another_server",),
        ((Notes._made_here, always(comparison(5, of=6))),),
    ),
    Mutant(
        "crash-in-a-definition",
        Promise.RECOVERY,
        "A statement that a crashed target may have carried out is not repeated in silence.",
        ("tests/unit/recover/test_seam.py::test_what_it_does_not_have",),
        ((is_executed, never(when(6, of=6))),),
    ),
    Mutant(
        "time-after-receipt",
        Promise.RECOVERY,
        "A time that is later than the receipt of its transaction is not believed.",
        ("tests/unit/recover/test_times.py::test_a_goal_is_not_reached_because_one_row_says_so",),
        ((Facts.is_credible, answers("True")),),
    ),
    Mutant(
        "base-backup-once",
        Promise.RECOVERY,
        "What a later lineage has of the transactions before the place of the base backup is not "
        "applied.",
        ("tests/unit/recover/test_goal.py::test_a_backup_is_not_applied_again_after_a_fail_over",),
        ((PieceBuilder._excluded, never(choice())),),
    ),
    Mutant(
        "between-transactions",
        Promise.RECOVERY,
        "A recovery neither begins nor ends inside a transaction.",
        ("tests/unit/recover/test_plan.py::test_a_position_inside_a_transaction_is_refused",),
        ((Search.line_position, never(when(3, of=4))),),
    ),
    Mutant(
        "block-crc-before-handing-on",
        Promise.RECOVERY,
        "Bytes whose block has another CRC64NVME than its entry says are never handed on.",
        ("tests/unit/recover/test_extract.py::test_a_flipped_byte_is_never_handed_on",),
        ((Blocks._block, always(when())),),
    ),
    Mutant(
        "plan-compared-with-bytes",
        Promise.RECOVERY,
        "A piece that has other transactions than the plan says is an error before its last bytes.",
        ("tests/unit/recover/test_extract.py::test_a_plan_that_is_wrong",),
        ((_PieceReader.run, never(when(1, of=2))),),
    ),
    Mutant(
        "proof-no-less",
        Promise.RECOVERY,
        "A target that lacks transactions is not done.",
        ("tests/unit/recover/test_target.py::test_what_differs_is_named",),
        ((prove, compared(comparison(1, of=2), ast.LtE())),),
    ),
    Mutant(
        "target-is-not-the-source",
        Promise.RECOVERY,
        "The source is no target.",
        ("tests/unit/recover/test_preflight.py::test_the_source_or_a_copy_of_it",),
        ((_source_problems, never(when(1, of=3))),),
    ),
    Mutant(
        "server-id-of-the-history",
        Promise.RECOVERY,
        "A target with the server_id of a server of the history is refused before anything is "
        "applied.",
        ("tests/unit/recover/test_preflight.py::test_a_server_id_of_the_history",),
        ((_obstacles, never(when(4, of=7))),),
    ),
    Mutant(
        "a-check-that-answers-no",
        Promise.RECOVERY,
        "A drill whose check answers 0 has proved nothing.",
        ("tests/unit/drill/test_drill.py::test_a_statement_that_answers_no_proves_nothing",),
        ((check_statements, never(part(when(), 2, of=2))),),
    ),
    Mutant(
        "dead-branch-by-position",
        Promise.RECOVERY,
        "A position that a dead branch has, too, is not taken for one of the history.",
        ("tests/unit/serve/test_dump.py::test_a_position_of_a_dead_branch_is_never_fed",),
        ((Branches.with_position, never(when(3, of=3))),),
    ),
    Mutant(
        "what-both-lineages-have-is-sent",
        Promise.RECOVERY,
        "A replica that begins in the binlog which two lineages share gets all that it lacks.",
        ("tests/unit/serve/test_places.py::test_from_every_place_of_a_server_that_was_put_back",),
        ((first_open, always(part(choice(5, of=7), 1, of=2))),),
    ),
    Mutant(
        "serve-nothing-unproved",
        Promise.RECOVERY,
        "Without checksums of events, `serve` sends nothing of an archived binlog that its entry "
        "does not prove.",
        ("tests/unit/serve/test_history.py::test_a_binlog_that_is_archived_in_the_middle",),
        ((Readable.proved_blocks, never(when(2, of=4))),),
    ),
    Mutant(
        "no-link-in-the-spool",
        Promise.SPOOL,
        "A link in the place of a run's directory is not followed.",
        ("tests/unit/stream/test_spool.py::test_a_run_that_is_a_link_is_refused",),
        ((check_inner, never(when())),),
    ),
    Mutant(
        "no-file-over-another-one",
        Promise.RECOVERY,
        "A restore moves no file over one that somebody else has put there.",
        ("tests/unit/restore/test_restore.py::test_no_file_is_moved_over_another_one",),
        ((DataDirectory.place, never(when(2, of=2))),),
    ),
    Mutant(
        "restored-for-the-same-tables",
        Promise.RECOVERY,
        "An unfinished restore goes on with the same tables only.",
        (
            (
                "tests/functional/test_restore_cli.py::"
                "test_what_all_was_applied_to_does_not_go_on_with_some_tables"
            ),
            (
                "tests/functional/test_restore_cli.py::"
                "test_one_that_has_only_some_tables_goes_on_with_those"
            ),
        ),
        ((_Restore._refuse_another, never(when(4, of=4))),),
    ),
    Mutant(
        "the-server-is-a-server",
        Promise.RECOVERY,
        "A restore begins nothing with a client in the place of the server program.",
        (
            (
                "tests/functional/test_restore_cli.py::"
                "test_the_client_in_the_place_of_the_server_is_refused"
            ),
        ),
        ((version_of, never(when(2, of=2))),),
    ),
    Mutant(
        "location-is-no-code",
        Promise.BUCKET,
        "What a document says is no code to a shell that a restore command runs.",
        ("tests/unit/drill/test_drill.py::test_what_the_archive_says_is_no_code",),
        ((refuse_values, never(when(2, of=5))),),
    ),
    Mutant(
        "serve-nothing-behind-a-gap",
        Promise.RECOVERY,
        "`serve` sends nothing behind a gap: the replica is told what is missing.",
        ("tests/unit/serve/test_dump.py::test_a_gap",),
        ((gtids_break, always(when(1, of=2))),),
    ),
    Mutant(
        "a-floor-excuses-no-more",
        Promise.RECOVERY,
        "What is missing at a floor or above it is a gap.",
        ("tests/unit/retain/test_prune.py::test_a_floor_excuses_only_what_is_below_it",),
        ((missing_binlogs, always(when(2, of=2))),),
    ),
    Mutant(
        "encryption-confirmed",
        Promise.SECRETS,
        "Encryption that the store does not confirm counts as not done.",
        ("tests/contract/test_store.py::test_encryption_that_is_not_confirmed_is_an_error",),
        ((Integrity.confirm_encryption, never(when(1, of=2))),),
    ),
    Mutant(
        "a-privilege-that-is-missing",
        Promise.RECOVERY,
        "A target whose account lacks a privilege is refused before anything is applied.",
        ("tests/unit/recover/test_preflight.py::test_what_a_target_may_not_be",),
        ((problems, never(when(9, of=9))),),
    ),
    Mutant(
        "password-not-shown",
        Promise.SECRETS,
        "A login that is logged does not show its password.",
        ("tests/unit/server/test_login.py::test_a_password_is_never_shown",),
        ((Login, keyword(call(field), repr="True")),),
    ),
    Mutant(
        "no-password-in-clear-text",
        Promise.TLS,
        "A server that is not proved to be the right one does not get the password in clear text.",
        (
            "tests/unit/server/test_clear_text.py::test_a_server_that_is_not_proved_gets_no_password",
        ),
        ((_auth_plugins, becomes(call(dict.fromkeys), "{}")),),
    ),
    Mutant(
        "no-password-to-an-unproved-server",
        Promise.TLS,
        "There is no login to a server on another host that does not prove itself.",
        ("tests/unit/server/test_login.py::test_a_server_on_another_host_proves_itself",),
        ((_resolve, never(when(8, of=8))),),
    ),
    Mutant(
        "no-key-of-another-server",
        Promise.TLS,
        "A key that a server sends does not replace the one that was given.",
        ("tests/unit/server/test_clear_text.py::test_only_the_owner_of_the_known_key_gets_it",),
        ((_connect, becomes(call(_auth_plugins), "{}")),),
    ),
    Mutant(
        "no-key-of-the-server-for-mysqlbinlog",
        Promise.TLS,
        "mysqlbinlog is given the known key, and does not ask for one.",
        ("tests/unit/server/test_mysqlbinlog.py::test_the_known_key",),
        ((_options, never(when(5, of=6))),),
    ),
    Mutant(
        "a-target-that-verifies-nothing",
        Promise.TLS,
        "A target on another machine that would verify nothing is refused.",
        ("tests/unit/recover/test_listen.py::test_a_target_verifies_whom_it_replicates_from",),
        ((listen, never(when(2, of=3))),),
    ),
    Mutant(
        "tls-to-other-hosts",
        Promise.TLS,
        "A connection that leaves this host needs TLS, unless it is asked not to.",
        ("tests/unit/server/test_login.py::test_a_server_on_another_host_needs_tls",),
        ((_ssl_mode, always(choice())),),
    ),
    Mutant(
        "nothing-expands-without-end",
        Promise.BUCKET,
        "What is compressed in an event never becomes more than the event says.",
        (
            "tests/unit/binlog/test_compression.py::test_what_expands_beyond_what_its_header_says_is_refused",
        ),
        ((_ZstdOutput.write, never(when())),),
    ),
    Mutant(
        "names-of-documents",
        Promise.BUCKET,
        "A name in a document of the bucket that is none by the grammar of names is never used.",
        ("tests/unit/archive/test_fields.py::test_no_field_holds_what_the_grammar_does_not_allow",),
        ((_whole, answers("Meta()")),),
    ),
    Mutant(
        "document-of-its-key",
        Promise.BUCKET,
        "A document that by what it says belongs under another key is not read.",
        ("tests/unit/archive/test_fields.py::test_a_document_of_another_key_is_refused",),
        ((check_key, never(when())),),
    ),
    Mutant(
        "size-of-documents",
        Promise.BUCKET,
        "A document is not read beyond the size that one of its kind has.",
        ("tests/unit/archive/test_fields.py::test_a_document_is_read_up_to_a_limit",),
        ((fetch, keyword(call(Store.get), most=None)), (parse, never(when(1, of=2)))),
    ),
    Mutant(
        "only-complete-directories",
        Promise.RECOVERY,
        "What a stopped run of `pitr --output-dir` left is not served.",
        ("tests/unit/serve/test_directory.py::test_a_directory_without_a_manifest",),
        ((_manifest, never(when())),),
    ),
    Mutant(
        "files-as-they-were-written",
        Promise.RECOVERY,
        "A file that is not what `pitr --output-dir` wrote is not served.",
        ("tests/unit/serve/test_directory.py::test_a_file_that_is_not_as_it_was_written",),
        ((recovered, never(when(4, of=5))),),
    ),
    Mutant(
        "what-comes-before-the-files",
        Promise.RECOVERY,
        "A replica that lacks what comes before the files of a recovery is not served by them.",
        ("tests/unit/serve/test_directory.py::test_what_comes_before_the_files_must_be_there",),
        ((Directory.first_for, never(when(4, of=5))),),
    ),
    Mutant(
        "the-end-of-a-copied-binlog",
        Promise.RECOVERY,
        "A server's binlog that was copied in half is not served as a whole one.",
        ("tests/unit/serve/test_directory.py::test_a_file_that_was_copied_in_half",),
        ((_whole_file, never(when())),),
    ),
    Mutant(
        "no-path-from-a-plan",
        Promise.BUCKET,
        "What is no lineage id never becomes a directory of a recovery that is written as files.",
        ("tests/unit/recover/test_export.py::test_no_name_leads_out_of_the_directory",),
        ((_lineage_of, never(when())),),
    ),
)
