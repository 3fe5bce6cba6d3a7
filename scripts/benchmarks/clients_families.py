"""Simulated conversations of many client families, including the clients' internal calls, with the truth about each request.

The corpus follows how the clients build their requests, not the rules of collect. It must be read correctly without the rules for
known clients.

A request is `main` (a turn of a conversation), `side` (an internal call of the client), or `either`: a tool call of a side agent,
whose result is its true next state. The truth about a main turn is its parent turn and its next state. `FAMILIES` maps a name to a
function that writes one conversation.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clawctl.run.rows import Exchange, Message

PLAIN = "You are a helpful assistant."

Kind = Literal["main", "side", "either"]


@dataclass
class Asked:
    """A request and its true properties."""

    exchange: Exchange
    talk: str  # the conversation that it belongs to
    kind: Kind
    parent: str | None = None  # turn before a main turn
    next_state: list[Message] | None = None  # next state of a main turn


@dataclass
class Script:
    """The requests in order. `number` makes their ids unique."""

    number: int = 0
    key: str = "default"
    requests: list[Asked] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, messages: Sequence[Message], answer: Message | None, talk: str, kind: Kind, **changes: Any) -> Asked:
        count = next(self._ids)
        at = self.number * 1000.0 + count
        values: dict[str, Any] = {
            "exchange_id": f"f{self.number:011d}{count:012d}", "created_at": at, "finished_at": at + 0.5, "api": "chat",
            "key": self.key, "status": "ok" if answer is not None else "error", "model": "demo", "messages": list(messages),
            "tools": None, "response": answer,
            "finish_reason": "stop", "prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -0.5], "policy_version": 0,
            "policy_version_end": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "hints": {}, "untrainable_reason": None,
        }  # fmt: skip
        self.requests.append(Asked(Exchange(**{**values, **changes}), talk, kind))
        return self.requests[-1]

    def call_id(self) -> str:
        return f"call{self.number:09d}{next(self._ids):012d}x0"


@dataclass
class Talk:
    """One conversation of a client. `history` is the client's own history. `show` converts it into the messages of a request."""

    script: Script
    name: str
    system: str | None = PLAIN
    tools: Sequence[str] = ()
    hints: dict[str, Any] = field(default_factory=dict)
    show: Callable[[list[Message]], list[Message]] = list
    history: list[Message] = field(default_factory=list)
    last: Asked | None = None

    def request(self, messages: Sequence[Message], system: str | None = "own") -> list[Message]:
        system = self.system if system == "own" else system
        return [*([{"role": "system", "content": system}] if system else []), *messages]

    def turn(self, new: Sequence[Message], answer: Message | None, kept: Message | None = None) -> Asked:
        """Continue with `new`. `kept` is the answer in the client's history, if it differs. `answer` None is an error."""
        self.history += new
        request = self.script.ask(
            self.request(self.show(self.history)), answer, self.name, "main", tools=tools(*self.tools), hints=self.hints
        )
        request.parent = self.last.exchange.exchange_id if self.last else None
        if self.last is not None and self.last.next_state is None:
            self.last.next_state = self.show(self.history)[-len(new) :] if new else None
        if answer is not None:
            self.last = request
            self.history.append(kept or answer)
        else:
            self.history = self.history[: len(self.history) - len(new)]
        return request

    def says(self, text: str | list[dict], answer: str) -> Asked:
        return self.turn([{"role": "user", "content": text}], said(answer))

    def works(self, text: str, result: str, answer: str, name: str = "") -> None:
        """The person asks, the model calls a tool and answers."""
        call = self.call(text, name)
        self.turn([result_of(call, result)], said(answer))

    def call(self, spoken: str, name: str = "", text: str | None = None) -> Message:
        call = calling(self.script.call_id(), name or self.tools[0], text)
        self.turn([{"role": "user", "content": spoken}], call)
        return call

    def aside(self, new: Sequence[Message], answer: Message, system: str | None = "own", **changes: Any) -> Asked:
        """Make an internal call that continues the history."""
        changes = {"tools": tools(*self.tools), "hints": self.hints, **changes}
        kind: Kind = "either" if answer.get("tool_calls") else "side"
        return self.script.ask([*self.request(self.show(self.history), system), *new], answer, self.name, kind, **changes)


def tools(*names: str) -> list[dict[str, Any]] | None:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names] or None


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def calling(call_id: str, name: str, text: str | None = None, arguments: str = "{}") -> Message:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def result_of(call: Message, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": text}


# ---- coding agents in the terminal -----------------------------------------------------------------------------------------

AGENT_TOOLS = ("Bash", "Read", "Edit", "Task")
WISH = "[NEXT PROMPT] Write what the person may type next. Two to twelve words, nothing else."
NOTES = "These instructions are not part of the conversation. Bring the notes file up to date with the edit tool, then stop."


def suggests_and_takes_notes(script: Script) -> None:
    """A terminal agent requests a suggestion after each answer. A fork with the same tools keeps notes."""
    talk = Talk(script, "a", "You are an agent of the terminal.", AGENT_TOOLS, {"session_id": f"sug{script.number}"})
    for number, question in enumerate(("list the files", "which one is the largest?", "delete it", "thanks a lot")):
        if number < 2:
            talk.works(question, f"a.txt b.txt {number}", f"There are two files, seen {number}.")
        else:
            talk.says(question, f"As you like, number {number}.")
        talk.aside([user(WISH)], said("what about the others?"))
        if number < 3:
            note = talk.script.call_id()
            edit = calling(note, "Edit")
            talk.aside([user(NOTES)], edit)
            talk.aside([user(NOTES), edit, result_of(edit, "File edited.")], said("The notes are up to date."))


def notes_before_anything_else(script: Script) -> None:
    """A fork with tools keeps notes in the background before the person continues."""
    talk = Talk(script, "a", "You are an agent.", AGENT_TOOLS)
    for question in ("explain the plan of this", "and the second part?", "ok do it"):
        talk.says(question, f"Well: {question}")
        edit = calling(script.call_id(), "Edit")
        fork = [user(NOTES), edit, result_of(edit, "File edited.")]
        talk.aside(fork[:1], edit)
        talk.aside(fork, said("Done with the notes."))
    talk.says("bye", "Bye.")


def describes_its_progress(script: Script) -> None:
    """During a tool loop, a fork is asked to describe the current action."""
    talk = Talk(script, "a", "You are an agent.", AGENT_TOOLS)
    call = talk.call("run all tests")
    progress = "Describe the most recent action in three to five words."
    talk.aside([result_of(call, "3 failed"), user(progress)], said("Running all tests"))
    again = calling(script.call_id(), "Read")
    talk.turn([result_of(call, "3 failed")], again)
    talk.aside([result_of(again, "def f(): ..."), user(progress)], said("Reading the code"))
    talk.turn([result_of(again, "def f(): ...")], said("Three tests fail because of f."))
    talk.says("repair f", "Repaired.")
    talk.says("ty", "Welcome.")


def compacts_with_its_own_prompt(script: Script) -> None:
    """The client requests a summary with the same tools. The conversation continues after the summary."""
    talk = Talk(script, "a", "You are an agent.", AGENT_TOOLS, {"session_id": f"com{script.number}"})
    talk.works("read the long file", "line " * 50, "It is long and says nothing of interest.")
    talk.says("what does it say of cats?", "Nothing of cats.")
    summary = "The person asked about a long file. The file was read with a tool. It says nothing of cats, and nothing of interest."
    talk.aside(
        [user("Summarise this conversation so that it can go on elsewhere. Text only.")], said(f"<summary>{summary}</summary>")
    )
    talk.history, talk.last = [], None
    talk.says(f"This conversation goes on from an earlier one. Summary:\n{summary}\n\nContinue.", "Understood.")
    talk.says("and of dogs?", "Of dogs it says much.")


def is_too_long_and_compacts(script: Script) -> None:
    """The engine refuses the person's message as too long. After a summary, the client sends it again."""
    talk = Talk(script, "a", "You are an agent.", AGENT_TOOLS, {"session_id": f"ref{script.number}"})
    talk.works("read the long file", "line " * 50, "It is long.")
    before = talk.last
    talk.turn([user("now read all the others")], None)
    assert before is not None
    summary = "A long file was read with a tool. The person wants all the other files to be read as well."
    talk.aside([user("Summarise this conversation so that it can go on elsewhere. Text only.")], said(summary))
    talk.history, talk.last = [], None
    talk.says(f"Summary of what was before:\n{summary}\nGo on.", "I read them.")
    talk.says("good", "Thanks.")


def asks_who_speaks_next(script: Script) -> None:
    """After each text, the client asks without tools who speaks next. If it is the model, the client tells it to continue."""
    check = "Look only at your last response. Who speaks next, the user or the model? Answer in JSON."
    talk = Talk(script, "a", "You are an interactive agent.", ("shell", "read_file"))
    for number, question in enumerate(("look at a.py", "rename f to g", "is that all?")):
        talk.works(question, f"content {number}", f"Seen {number}.")
        talk.aside([user(check)], said('{"next_speaker": "user"}'), tools=None)
    talk.says("Explain it at length", "First,")
    talk.aside([user(check)], said('{"next_speaker": "model"}'), tools=None)
    talk.says("Please continue.", "and second. That is all.")
    talk.aside([user(check)], said('{"next_speaker": "user"}'), tools=None)
    talk.says("thanks", "Welcome.")


def asks_who_speaks_next_without_system(script: Script) -> None:
    """The same, without the system prompt and in an application without tools."""
    check = "Look only at your last response. Who speaks next? Answer in JSON."
    talk = Talk(script, "a", "You are an interactive agent.")
    for number, question in enumerate(("tell me a story", "a longer one", "and its end?")):
        talk.says(question, f"Once upon a time {number}.")
        talk.aside([user(check)], said('{"next_speaker": "user"}'), system=None)


def remembers_at_the_end(script: Script) -> None:
    """After each answer, a subagent with a different prompt and fewer tools extracts memories with its tools."""
    talk = Talk(script, "a", "You are a coding agent.", ("shell", "read_file", "write_file"))
    for number, question in enumerate(("I like short answers. What is in here?", "and there?", "remember that I use tabs")):
        talk.works(question, f"file {number}", f"One file {number}.")
        write = calling(script.call_id(), "write_file")
        subagent: dict[str, Any] = {"system": "You are the memory subagent.", "tools": tools("read_file", "write_file")}
        ask = user("Extract what is worth remembering.")
        talk.aside([ask], write, **subagent)
        if number < 2:
            talk.aside([ask, write, result_of(write, "written")], said("One memory."), **subagent)


def titles_in_a_thread_of_its_own(script: Script) -> None:
    """The client requests a title for each message of the person, each in a separate session."""
    talk = Talk(script, "a", "You are a coding agent.", ("exec_command", "view_image"), {"session_id": f"thr{script.number}"})
    for number, question in enumerate(("find the bug in the parser", "now write a test for it", "commit it please")):
        title = [user(f"Write a task title of at most 36 characters for this prompt.\n\nUser prompt:\n{question}")]
        script.ask(
            talk.request(title), said(f"Title {number}"), "a", "side", hints={"session_id": f"title{script.number}-{number}"}
        )
        talk.works(question, f"ok {number}", f"Done with it, {number}.")


def titles_before_the_first_answer(script: Script) -> None:
    """A title agent with a different system prompt gets the person's message. The requests have no session id."""
    talk = Talk(script, "a", "You are a coding agent.", ("bash", "edit"))
    task = "please find out why the build fails"
    script.ask([{"role": "system", "content": "You write titles."}, user("Write a title for this conversation:\n"), user(task)],
               said("Failing build"), "a", "side")  # fmt: skip
    talk.works(task, "exit 1", "A file is missing.")
    talk.says("add it", "Added.")
    talk.says("great", "Thanks.")


def names_the_session_and_judges_tools(script: Script) -> None:
    """The client sends the messages so far to get a name. A judge with one tool decides which calls only read."""
    talk = Talk(script, "a", "You are a general agent.", ("shell", "memory"))
    judge = {"role": "system", "content": "You judge permissions."}
    for number, question in enumerate(("show me the disk usage of this host", "clean the old logs", "and the caches")):
        said_so_far = "\n".join(m["content"] for m in talk.history if m["role"] == "user") + f"\n{question}"
        script.ask([user(f"Describe this session in four words or less:\n{said_so_far}")], said(f"Disk {number}"), "a", "side")
        call = talk.call(question)
        permission = [judge, user(f"Which of these calls only read? shell {{}} number {number}")]
        script.ask(permission, calling(script.call_id(), "decide"), "a", "either", tools=tools("decide"))
        talk.turn([result_of(call, f"{number} GB")], said(f"Done, {number} GB."))


# ---- editors -----------------------------------------------------------------------------------------------------------------


def calls_tools_in_text(script: Script) -> None:
    """Calls and results are text: a result is a user message that ends with details of the editor."""
    talk = Talk(script, "a", "You are an editor's agent. Use XML for tools.")
    details = "<environment_details>\nOpen tabs: a.py\n</environment_details>"
    talk.says(f"<task>\nrepair a.py\n</task>\n{details}", "<read_file><path>a.py</path></read_file>")
    talk.says(f"[read_file for 'a.py'] Result:\nprint(1)\n{details}", "I see.")
    talk.says(f"[ERROR] You did not use a tool in your previous response! Retry with one.\n{details}", "<done>Repaired.</done>")
    talk.says(f"<feedback>\nno, it still fails\n</feedback>\n{details}", "<done>Now it is.</done>")


def condenses_its_history(script: Script) -> None:
    """The client condenses the history with a different prompt. The first message, the summary and the last messages remain."""
    talk = Talk(script, "a", "You are an editor's agent.")
    wishes = ["build a small web page", "make it blue", "add a picture of a cat", "add a footer", "ship it"]
    for number, text in enumerate(wishes[:4]):
        talk.says(text, f"I did step {number} as you said.")
    summary = "The person wants a web page. It was built, made blue, and has a picture of a cat and a footer."
    talk.aside([user("Summarise the conversation so far.")], said(summary), system="Your task is a summary.")
    talk.history = [talk.history[0], said(summary), *talk.history[-3:]]
    talk.says(wishes[4], "Shipped.")
    talk.says("thanks", "Welcome.")


def improves_the_prompt(script: Script) -> None:
    """The editor requests a better version of the person's prompt, which the person then sends."""
    script.ask(
        [user("Write a better version of this prompt, reply with it only:\n\nmake page")],
        said("Build a small web page."),
        "p",
        "side",
    )
    talk = Talk(script, "a", "You are an editor's agent.", ("write_to_file",))
    talk.works("Build a small web page.", "written", "It is built.")
    talk.says("nice, and a footer", "Added.")
    talk.says("ok", "Fine.")


def titles_by_the_answer(script: Script) -> None:
    """The client requests a title for the first answer, without tools and without a system prompt."""
    talk = Talk(script, "a", "You are an agent in an editor.", ("Bash", "Read"))
    talk.works("how many files are there in this folder?", "12", "There are twelve files in this folder.")
    script.ask(
        [user("Reply with a title of three words for the chat.\n\nThere are twelve files in this folder.")],
        said("Twelve files"),
        "a",
        "side",
    )
    talk.says("and in the one above?", "Three.")
    talk.says("ok", "Fine.")


def titles_behind_the_history(script: Script) -> None:
    """After the first answer, the client requests a title: history and one more message, without tools and system prompt."""
    talk = Talk(script, "a", "You are an agent in an editor.", ("grep", "edit_file"))
    talk.works("where is main?", "a.rs:3", "In a.rs.")
    talk.aside(
        [user("Write a title of three to seven words for this conversation.")], said("Where main is"), system=None, tools=None
    )
    talk.works("rename it", "ok", "Renamed.")
    talk.says("thanks", "Welcome.")
    script.ask([user("Rewrite this code:\nfn main() {}\nReply with the code only.")], said("fn start() {}"), "inline", "main")


def refreshes_its_context(script: Script) -> None:
    """Changing files precede the conversation. Only the last message contains a reminder."""
    state = {"file": "print(1)"}

    def show(history: list[Message]) -> list[Message]:
        front = [
            user(f"I have added these files:\na.py\n{state['file']}"),
            said("Ok, any changes I propose will be to those files."),
        ]
        return [*front, *history[:-1], user(f"{history[-1]['content']}\n\nReply with whole files.")]

    talk = Talk(script, "a", None, show=show)
    for number, question in enumerate(("print two instead", "print three instead", "and a comment please", "thanks")):
        talk.says(question, f"a.py\nprint({number + 2})")
        if number < 3:
            state["file"] = f"print({number + 2})"
            diff = [
                {"role": "system", "content": "Write a one-line commit message."},
                user(f"USER: {question}\ndiff a.py\n+print({number + 2})"),
            ]
            script.ask(diff, said(f"feat: print {number}"), "commit", "side", model="weak")


def summarises_with_a_weak_model(script: Script) -> None:
    """A weak model summarises the beginning of the history. The last messages remain."""
    talk = Talk(script, "a", "You are a pair programmer.")
    for number, question in enumerate(
        ("write a parser for dates", "it fails for leap years", "add tests for them", "now the time zones")
    ):
        talk.says(question, f"Step {number} of the parser is written as you asked.")
    beginning = "\n".join(f"# {m['role'].upper()}\n{m['content']}" for m in talk.history[:4])
    summary = "I asked you for a parser of dates, which failed for leap years, and you repaired it."
    script.ask(
        [{"role": "system", "content": "Briefly summarise this partial conversation."}, user(beginning)],
        said(summary),
        "a",
        "side",
        model="weak",
    )
    talk.history = [user(f"I spoke to you before.\n{summary}"), said("Ok."), *talk.history[4:]]
    talk.says("and now the docs", "Written.")
    talk.says("ty", "Welcome.")


# ---- chat pages --------------------------------------------------------------------------------------------------------------


def chat_page_with_helpers(script: Script) -> None:
    """A chat page requests queries before each answer, and title, tags and follow-ups after it, in one message each."""
    talk = Talk(script, "a", None)
    for number, question in enumerate(
        ("what is the capital of Italy?", "how many people live there?", "and in the second largest city?")
    ):
        past = "\n".join(f"{m['role'].upper()}: {m['content']}" for m in talk.history)
        query = f"### Task:\nWrite search queries.\n<chat_history>\n{past}\nUSER: {question}\n</chat_history>"
        script.ask([user(query)], said('{"queries": []}'), "a", "side")
        talk.says(question, f"That would be answer number {number}.")
        past = "\n".join(f"{m['role'].upper()}: {m['content']}" for m in talk.history)
        for task in ("a title with an emoji", "one to three tags", "follow-up questions")[: 3 if number == 0 else 1]:
            script.ask([user(f"### Task:\nWrite {task}.\n<chat_history>\n{past}\n</chat_history>")], said('{"x": 1}'), "a", "side")


def chat_page_with_a_window(script: Script) -> None:
    """The client sends only the last messages."""
    talk = Talk(script, "a", "Be brief.", show=lambda history: history[-5:])
    for number in range(6):
        talk.says(f"this is question number {number} of many", f"this is the answer to question {number}")


def keeps_final_answers_only(script: Script) -> None:
    """The client removes all tool calls from the history."""
    talk = Talk(script, "a", "Be brief.", ("look",))
    for number in range(3):
        call = talk.call(f"how is the weather in city {number}?")
        talk.turn([result_of(call, f"sunny {number}")], said(f"It is sunny in city {number}."))
        talk.history = [m for m in talk.history if m["role"] == "user" or (m["role"] == "assistant" and "tool_calls" not in m)]


def rewrites_the_question(script: Script) -> None:
    """The client rewrites each question as a standalone question first, and extracts memories after its answer."""
    talk = Talk(script, "a", "Answer by the context.")
    for number, question in enumerate(("who wrote the report?", "when did she write it?", "what does she say of bees?")):
        if talk.history:
            past = "\n".join(f"{m['role']}: {m['content']}" for m in talk.history)
            script.ask(
                [user(f"Rewrite the last question so that it stands alone.\n{past}\nuser: {question}")],
                said(f"alone {number}"),
                "a",
                "side",
            )
        talk.says(question, f"By the report, it is as in part {number}.")
        facts = f"Input:\nuser: {question}\nassistant: By the report, it is as in part {number}."
        script.ask([{"role": "system", "content": "Extract facts."}, user(facts)], said('{"facts": []}'), "a", "side")


def appends_a_context_message(script: Script) -> None:
    """A context message follows the person's message, also in internal calls. It is absent from the next request."""
    state = itertools.count()

    def show(history: list[Message]) -> list[Message]:
        return [*history, user(f"<context>\nopen file {next(state)}\n</context>")]

    talk = Talk(script, "a", "You are an agent.", ("run",), show=show)
    for number, question in enumerate(("what is open?", "close it", "open the next one", "ty")):
        context = [user(f"<context>\nopen file x{number}\n</context>")]
        talk.says(question, f"Done {number}.")
        assert talk.last is not None
        script.ask(talk.request([*talk.history, user(WISH), *context]), said("and then?"), "a", "side", tools=tools("run"))
    for request, after in itertools.pairwise([a for a in script.requests if a.kind == "main"]):
        request.next_state = after.exchange.messages[-2:]


# ---- many agents -----------------------------------------------------------------------------------------------------------


def agents_that_speak_to_each_other(script: Script) -> None:
    """Two agents see each other's messages as user messages. A manager decides who speaks next."""
    writer = Talk(script, "writer", "You write.")
    critic = Talk(script, "critic", "You criticise.")
    task = "write two lines on the sea"
    wish = task
    for number in range(3):
        manager = [{"role": "system", "content": "Say who speaks next: writer or critic."}, user(f"{task}\nround {number}")]
        script.ask(manager, said("writer"), "manager", "main")
        text = writer.says(wish, f"The sea is wide and draft {number} is short.")
        wish = f"Too plain is draft {number}, I say."
        critic.says(str((text.exchange.response or {})["content"]), wish)


def plans_between_its_steps(script: Script) -> None:
    """A separately requested plan joins the history as an answer. Results are user messages. A helper does a task."""
    talk = Talk(script, "a", "You solve tasks with code.")
    task = "Task: how warm is it in Rome?"
    script.ask([user(f"Survey the facts and make a plan.\n{task}\nSteps first.")], said("1. ask the helper"), "a", "side")
    talk.history = [user(task), said("Here is the plan:\n1. ask the helper")]
    talk.turn(
        [user("Now carry out this plan.")],
        said("<code>helper('temperature of Rome')"),
        said("<code>helper('temperature of Rome')</code>"),
    )
    helper = Talk(script, "helper", "You solve tasks with code.")
    helper.turn([user("You are helper. Task: temperature of Rome")], said("<code>search()"), said("<code>search()</code>"))
    helper.turn([user("Observation: 20")], said("<code>final('20')"), said("<code>final('20')</code>"))
    talk.turn([user("Observation: 20 degrees")], said("<code>final_answer(20)"), said("<code>final_answer(20)</code>"))
    talk.turn(
        [user("Observation: 20\nNew task: and in Oslo?")], said("<code>final_answer(5)"), said("<code>final_answer(5)</code>")
    )


def plans_again_between_its_steps(script: Script) -> None:
    """The same, with a new plan after two steps. The client closes each answer and appends a list of its calls."""

    def kept(text: str) -> Message:
        return said(f"{text}</code>\nCalling tools:\n[{{'id': 'call_1', 'function': {{'name': 'python'}}}}]")

    talk = Talk(script, "a", "You solve tasks with code, step by step.")
    for number in range(4):
        new = [user(f"Observation:\nline {number} of the report")] if number else [user("New task:\nread the report")]
        if number == 2:
            plan = f"1. read on from line {number}"
            request = [user("Write an updated plan.")]
            talk.aside([*new, *request], said(plan), system="You are an expert in plans.")
            new += [said(f"Here is my new plan to solve the task:\n{plan}"), user("Now carry out this plan.")]
        text = f"Thought: I read line {number}.\n<code>\nread({number})\n"
        before = talk.last
        talk.turn(new, said(text), kept(text))
        if before is not None:
            before.next_state = new[:1]


def asks_again_for_its_own_answer(script: Script) -> None:
    """After each answer, the client extracts data and reports errors in the extraction."""
    talk = Talk(script, "a", "You sell tickets.")
    for number, question in enumerate(("two tickets to Rome please", "by train", "in the morning", "thank you")):
        talk.says(question, f"I see to it, number {number}.")
        ask, broken = user("Extract the order as JSON with the keys place and count."), said(f"{{broken {number}")
        talk.aside([ask], broken).kind = "either"
        talk.aside([ask, broken, user("This is no JSON. Correct it.")], said("{}")).kind = "either"


def sends_results_as_system_messages(script: Script) -> None:
    """Two concurrent runs have the same prompt and the same answers. Only their tool output differs."""
    talks = {name: Talk(script, name, "You are an agent of the terminal.") for name in "ab"}
    steps = ("```shell\nls\n```", "```shell\ncat it\n```", "It is empty.")
    for name, number in (("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("b", 2)):
        result = {"role": "system", "content": f"Ran command {number}:\n{name}.txt"}
        talks[name].turn([result] if number else [user("what is in this folder?")], said(steps[number]))
    for name, talk in talks.items():
        talk.says("thanks", f"Welcome, {name}.")


def a_supervisor_and_its_workers(script: Script) -> None:
    """The supervisor delegates tasks with a tool. The workers see the same first message and have different tools."""
    boss = Talk(script, "boss", "You supervise.", ("hand_over",))
    for number in range(2):
        call = boss.call(f"find out about topic {number} for me")
        worker = Talk(script, f"worker {number}", "You do research.", ("search",))
        worker.works(f"find out about topic {number} for me", f"fact {number}", f"The fact is {number}.")
        boss.turn([result_of(call, f"The fact is {number}.")], said(f"It is {number}."))
    boss.says("thanks", "Welcome.")


def clears_a_broken_call(script: Script) -> None:
    """The client replaces an unparsable call in the history by an error."""
    talk = Talk(script, "a", "You are an agent.", ("edit",))
    broken = calling(script.call_id(), "edit", "I edit it now.", '{"path": ')
    talk.turn([user("change a.py")], broken, said("I edit it now."))
    talk.turn([user("Your tool call was not valid JSON. Try again.")], said("I am sorry."))
    talk.says("well?", "It is done.")


def edits_and_regenerates(script: Script) -> None:
    """The person regenerates an answer, and edits and resends a message."""
    talk = Talk(script, "a", None)
    talk.says("write a haiku on snow", "Snow falls on the old pond.")
    old = talk.history[:-1]
    request = script.ask(old, said("White is the morning."), "a", "main")
    talk.history, talk.last = [*old, said("White is the morning.")], request
    script.requests[0].next_state = None
    talk.says("in German please", "Weiss ist der Morgen.")
    talk.says("danke", "Bitte.")


FAMILIES: dict[str, Callable[[Script], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        suggests_and_takes_notes, notes_before_anything_else, describes_its_progress, compacts_with_its_own_prompt,
        is_too_long_and_compacts, asks_who_speaks_next, asks_who_speaks_next_without_system, remembers_at_the_end,
        titles_in_a_thread_of_its_own, titles_before_the_first_answer, names_the_session_and_judges_tools, calls_tools_in_text,
        condenses_its_history, improves_the_prompt, titles_by_the_answer, titles_behind_the_history, refreshes_its_context,
        summarises_with_a_weak_model, chat_page_with_helpers, chat_page_with_a_window, keeps_final_answers_only,
        rewrites_the_question, appends_a_context_message, agents_that_speak_to_each_other, plans_between_its_steps,
        plans_again_between_its_steps, asks_again_for_its_own_answer, sends_results_as_system_messages,
        a_supervisor_and_its_workers, clears_a_broken_call, edits_and_regenerates,
    )
}  # fmt: skip


def written(name: str, number: int = 0, key: str = "default") -> list[Asked]:
    """Return the requests of one family in order."""
    script = Script(number, key)
    FAMILIES[name](script)
    return script.requests
