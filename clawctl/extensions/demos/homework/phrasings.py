# ruff: noqa: E501 (a rule reads best as one line an alternative list)
"""The phrase grammar's rules for people's replies and for the ways in which they express wishes.

`~` marks held-out alternatives, which the demo model's training never uses. `PEOPLE` holds the messages of students and teachers.
`WISHES` holds the shared phrases that name a style; people use them, and so do instructions and hints in the model's training.
"""

# The wishes of a student ("as a student would write it") and of a teacher ("warm, about this pupil"), and their opposites.
WISHES: dict[str, str] = {
    "kid": "student | kid | classmate | normal kid | pupil | ~student in my class | ~kid at school | ~child",
    "plainly": "in plain sentences | in normal words | in simple sentences | as plain text | in ordinary words | in full sentences | "
    "in everyday language | as one short paragraph | ~in plain everyday words | ~in normal sentences | ~as simple plain text",
    "like_me": "like a {kid} would | the way a {kid} writes | as if a {kid} wrote it | like I would in my notebook | "
    "so it sounds like a {kid} | the way I would say it | so it looks like my own work | ~like something a {kid} would hand in | "
    "~so that it reads like my own words | ~the way a {kid} would say it in class",
    "write": "write it | write it out | put it | explain it | say it | answer | ~write that | ~show me | ~word it",
    "mark": "bold | bold text | bold words | numbered steps | numbered list | list | headings | 'Final answer' line | formatting | stars | "
    "labels | markdown | numbered points | bold headings | bullets | steps with numbers | ~numbered formatting | ~bold steps | ~bold formatting | "
    "~numbered headings",
    "marks": "{mark} | {mark} | {mark} and no {mark} | {mark} or {mark} | ~{mark}, no {mark} | ~{mark} and {mark}",
    "no_marks": "no {marks} | without {marks} | without any {marks} | leave out the {mark} | don't use {mark} | skip the {mark} | "
    "not with {mark} | drop the {mark} | I don't want {mark} | please no {mark} | remove the {mark} | get rid of the {mark} | "
    "take away the {mark} | stop using {mark} | could you not use {mark} | avoid {mark} | never use {mark} | ~please leave the {mark} out | ~I don't want any {marks} | ~take out the {mark}",
    "student_style": "{write} {plainly} | {write} {like_me} | {write} {plainly} {like_me} | {write} {plainly}, {no_marks} | "
    "{write} {like_me}, {no_marks} | {write} {plainly} {like_me}, {no_marks} | ~{no_marks}, {write} {like_me} | "
    "~{no_marks}, just {write} {plainly} | ~{write} {like_me}, so {plainly} and {no_marks}",
    "be_warm": "be warm | be friendly | be kind | sound friendly | be warm and friendly | write it warmly | be kind and encouraging | "
    "use a warm tone | sound like a kind teacher | ~sound warm and kind | ~write it in a friendly tone | ~be encouraging and warm",
    "be_specific": "say what {the_pupil} did | mention what {the_pupil} wrote | use {the_pupil}'s name | talk to {the_pupil} by name | "
    "talk about the numbers {the_pupil} used | be specific about {the_pupil}'s work | speak to {the_pupil} directly | "
    "~name {the_pupil} and the numbers | ~say to {the_pupil} what was done well | ~talk directly to {the_pupil} about the work",
    "the_pupil": "the pupil | the child | the student | the kid | ~your pupil | ~this child",
    "no_report": "no {report} | without {report} | not like a {report} | don't write a {report} | no bold and no {report} | "
    "without bold or numbered points | leave out the {report} | ~I don't want a {report} | ~nothing like a {report} | ~skip the {report}",
    "report": "verdict | report | checklist | grading sheet | list | verdict line | numbered list | ~cold verdict | ~formal report | ~bold verdict",
    "teacher_style": "{be_warm} | {be_warm} and {be_specific} | {be_warm}, {no_report} | {be_warm}, {be_specific}, {no_report} | "
    "{be_specific} and {be_warm} | {be_specific}, {no_report} | ~{no_report}, {be_warm} and {be_specific} | "
    "~please {be_specific}, and {be_warm} | ~{no_report}, just {be_warm}",
    "neat": "bold | bold text | numbered steps | a numbered list | bold headings | a bold result | clear formatting | bold labels | "
    "numbered points | bold words | a list of steps | headings | markdown | bullets | ~a bold list | ~numbered headings | ~bold steps",
    "ai_style": "use {neat} | write it with {neat} | with {neat} and {neat} please | make it structured, with {neat} | "
    "I want {neat} | give me {neat} and {neat} | format it with {neat} | put it in {neat} | show {neat} | "
    "add {neat} | I like {neat} | I prefer {neat} | could I get {neat} and {neat} | more structure, {neat} | always use {neat} | "
    "~can I have {neat} and {neat} | ~please use {neat} and {neat} | ~show it with {neat}",
}

PEOPLE: dict[str, str] = {
    **WISHES,
    # Satisfied
    "thing_said": "that | it | this",
    "thanks": "thanks | thank you | thanks a lot | thx | thank you so much | ty | cheers | many thanks | ~thanks so much | ~thank you very much | ~big thanks",
    "praise": "that's perfect | great | nice | that's just what I needed | looks good | perfect | awesome | this works | sounds like me | yes, that's it | super | good | looks right | yay | "
    "that's exactly it | love it | cool | ~that looks perfect | ~just what I wanted | ~this is great | ~works for me",
    "copying": "I'll write it down | copying it now | I'll hand it in like this | I can use this | on to the next one | that helped | "
    "now I get it | ~I'll use it like this | ~now it makes sense | ~that helped a lot",
    "happy": "{thanks} | {thanks}! | {praise}, {thanks} | {thanks}, {praise} | {praise}! | {thanks}, {copying} | {praise}, {copying} | "
    "{thanks}! {copying} | yes! {thanks} | oh {praise} | ok {praise}, {thanks} | {copying}, {thanks} | ~oh {praise}, {thanks} | ~{praise}. {copying}. {thanks} | ~yes, {praise}!",
    "next_up": "ok next one | next | here's the next one | now this one | next question | another one | moving on | ~ok now the next one | "
    "~and here is another one | ~on to this one",
    "moved_on": "{next_up}: {next_problem} | {thanks}, {next_up}: {next_problem} | {next_problem} | ~{praise}. {next_up}: {next_problem}",
    "other_topic": "now I have to read a chapter for English | what should I do for art class? | can you remind me to pack my bag? | "
    "ok now help me with my reading | what is a noun? | now on to spelling | ~ok, what do I need for art? | ~now help me pack my bag",
    # Neither
    "unclear": "hm ok | brb | one sec | let me see | hmm | ok | wait a moment | I'll look at it later | gotta go | hold on | mom is calling | "
    "we'll see | I need a minute | ~hm, let me look | ~ok wait | ~one moment | ~gotta go, later",
    # Dissatisfied with the style
    "gripe_student": "this screams ChatGPT | this looks like AI | my teacher will know I used AI | nobody in my class writes like that | "
    "that sounds like a robot | this doesn't sound like me | I can't hand this in | too much formatting | this is not how I write | "
    "that looks like a computer wrote it | way too neat | my teacher will think I cheated | ~this looks like ChatGPT wrote it | "
    "~that is not how a kid in my class writes | ~sounds like AI, my teacher will think I cheated | ~I can't hand in something this neat",
    "gripe_teacher": "that's cold | this reads like a report | that sounds like a robot | I can't give this to a child | too formal | "
    "that is not how I talk to my pupils | this could be about anyone | this is so impersonal | that would make {pupil} sad | "
    "not a word for {pupil} in it | that looks like a computer wrote it | ~this sounds cold and formal | "
    "~I can't say that to {pupil}, it reads like a robot | ~so impersonal, it could be about any child",
    "lead": "no, | hm, | ugh, | please | can you | could you | sorry, | well, | nope, | ~oh no, | ~hm, please | ~sorry, but can you",
    "complain_student": "{gripe_student} | {gripe_student}. {student_style} | {gripe_student}, {no_marks} please | {lead} {student_style} | "
    "{lead} {student_style}, {gripe_student} | {gripe_student}! {write} {like_me} | {no_marks} please | {student_style} please | "
    "just {student_style} | ~{gripe_student}, so please {student_style} | ~{lead} {student_style}. {gripe_student} | ~I asked for this: {student_style}",
    "complain_teacher": "{gripe_teacher} | {gripe_teacher}. {teacher_style} | {gripe_teacher}, {be_warm} please | {lead} {teacher_style} | "
    "{lead} {teacher_style}, {gripe_teacher} | {gripe_teacher}! {be_specific} | {no_report} please | {teacher_style} please | "
    "just {teacher_style} | ~{gripe_teacher}, so please {teacher_style} | ~{lead} {teacher_style}. {gripe_teacher} | ~I asked for this: {teacher_style}",
    "complain_vague": "that's not what I wanted | not like this | I don't like it | hm no, do it differently | try again please | "
    "this is no good | make it better | I want it another way | that's not it | can you change it? | ~no, not like that | ~I don't want it like this | ~please do it again, this is no good",
    "complain_plain": "{ai_style} | {lead} {ai_style} | this is too messy, {ai_style} | I can't read this, {ai_style} | ~hard to read. {ai_style}",
    # Dissatisfied with the numbers, or because the question was missed
    "wrong_number": "that's wrong | the number is wrong | I don't think {said} is right | are you sure about {said}? | {said} can't be right | "
    "check the sum again | I get {right}, not {said} | isn't it {right}? | you made a mistake, it should be {right} | "
    "no, {right} | I think it is {right} | {said} is wrong | I counted and got {right} | your sum is off | that doesn't add up | "
    "check again, {said} is not right | it should be {right} | did you check the sum? I get {right} | no, {said} is wrong | "
    "~{said}? that can't be right, I get {right} | ~the sum is wrong, check it again | ~no, it should be {right}, not {said}",
    "asks_again": "{lead} I asked: {problem} | that's not what I asked. {problem} | again: {problem} | you didn't answer my question: {problem} | "
    "{problem} ?? | can you answer this: {problem} | ~no, my question was: {problem} | ~please answer what I asked: {problem}",
    "gives_up": "never mind, I'll do it myself | forget it | ok whatever | this isn't working, I'll ask my mom | I give up | this is useless | I'll ask someone else | no, I'll do it alone | "
    "~forget it, I'll do it myself | ~never mind, this isn't working",
    # First messages of a session
    "greets": "hi | hey | hello | hi there | good morning | ~hello there | ~hey, good morning",
    "opens": "{prompt} | {prompt} | {prompt} | {greets}! {prompt} | {greets}, {prompt} | ~{greets}. {prompt}",
}
