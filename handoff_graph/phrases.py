"""The phrases that bind an agent, and those that only look like it.

A sentence is read clause by clause, in a plain form: lower case, single spaces, contractions
written out, code and quoted words left out. So "We never touched prod, so don't start now" is
bound by its second clause alone, and no pattern needs to know how an apostrophe is typed.
"""

from __future__ import annotations

import re

__all__ = ["binds", "plain", "straight"]

# Every pattern here must take linear time on any text, as a message may be of any length: a
# pasted table has runs of thousands of spaces. A gap is therefore bounded, or there is one
# `.*` in a pattern that can start in one place only.

_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"', "„": '"', "…": "."})
_CODE = re.compile(r"`[^`]*`")
_SPELLING = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"[*]|__", ""),
        (r"\bwon'?t\b", "will not"),
        (r"\b(?:can ?not|can'?t)\b", "can not"),
        (r"\b(do|does|did|is|are|was|were|must|should|could|would|has|need)n'?t\b", r"\1 not"),
        (r"'re\b", " are"),
        (r"\bi'm\b", "i am"),
        (r"\b(it|that)'s\b", r"\1 is"),
        (r"\b(?:pls|plz)\b", "please"),
        (r"\bu\b", "you"),
        (r"\bb4\b", "before"),
        (r"\b(?:ok|o\.k\.)(?!\w)", "okay"),
    )
)

_DATA = re.compile(  # a line of a log or of code that nobody fenced
    r"(?:\d{4}-\d\d-\d\d[tT ]\d|\[?(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL|PANIC)\b\]?[ :]"
    r"|\[(?:error|warn|info|debug)|(?:npm|pip) ERR|E   |[\w/.-]*/[\w.-]+ \d/\d |Traceback\b"
    r"|[\w.]*(?:Error|Exception): |(?:if|while|for) ?\(|(?:raise|assert|return|const|let|SELECT)"
    r" \S+[(=<*]|if [\w.]+(?: \w+\.\w+)?\(|[{$] ?\S)"
)
_SOURCE = (
    r"(?:docs?|documentation|manual|logs?|errors?|messages?|readme|wiki|tutorials?|book|website"
    r"|page"
    r"|site|linter|compiler|comment|exception|output|tools?|spec|specification|form|text|blog"
    r"|article"
    r"|notes|forum|trace|sign|alert|warning|contract|mail|e-mail|server|console|terminal|script"
    r"|caller|colleague|friend|aunt|uncle|neighbou?r|someone|somebody|vendor|he|she|they|it)"
)
_SAYS = (
    r"(?:says?|said|reads?|claims?|claimed|states?|stated|mentions?|mentioned|prints?|printed"
    r"|tells?"
    r"|told|complains?|complained|warns?|warned|contains?|insisted|asked|wrote|writes?|suggests?"
    r"|suggested|recommends?|recommended|reports?|reported|shows?|threw|throws)"
)
_QUOTED = re.compile(
    rf"\b(?:{_SAYS}|was|is|were|with|line|text)\b[^\"']{{0,40}}"
    r"(?:\"[^\"]*(?:\"|$)|(?<!\w)'[^']*(?:'(?!\w)|$))"
)
_REPORTED = re.compile(
    rf"\b(?:{_SOURCE}(?: \w+){{0,3}} {_SAYS}|i (?:heard|read|was told|understand|thought)"
    r"|according to)\b.*?(?=; | but |$)"
)
_CLAUSE = re.compile(
    r"[.!?;:,](?= |$)|[()|—–]| -+ |(?<!nobody)(?<!no one)(?<!nothing) but (?!not )| (?:so|because) "
    r"| (?:and|or|then|now|please|to)(?= (?:do not|never|make sure|only|ask me|please) )"
)
_LEAD = re.compile(
    r"^ *(?:(?:please|and|but|so|then|also|just|or|okay|really|kindly|now|next|again|otherwise"
    r"|hey|hi|hello|instead|i said|well|yes|note that|in any case|if you must|"
    r"for this \w+|in this \w+|this time|in future|say|we said) )*"
)
_DESCRIBED = re.compile(  # what a task asks to find out or to tell is its subject, not its order
    r"(?:(?:could|can|would|will) you )?(?:find|list|count|show|explain|summari[sz]e|describe"
    r"|document|figure|tell|draft|plot|translate|identify|analy[sz]e)\b"
    r".*?\b(?:that|who|whose|which|why|how|whether|what|where|saying)\b"
)
_PAST = re.compile(
    r"\b(?:was|were|had|did|yesterday|ago|back then|these days|currently|waited|tried|avoided"
    r"|last (?:night|week|month|year|sprint|quarter|time))\b|\b(?:in|since) (?:19|20)\d\d\b"
)
_SUPPOSED = re.compile(
    r"(?:maybe|perhaps|suppose|i wonder|i guess|i bet|in theory|one could|even if|it would|it might"
    r"|had |i would|would |if (?:i|we|they|he|she|it|the \w+) (?:had|were|never)\b)"
    r"|unless i am (?:mistaken|wrong)"
)

# The first word of a clause that is no order.
_NO_ORDER = (
    r"(?!(?:i|we|you|he|she|it|they|the|a|an|this|that|these|those|there|my|our|your|his|her|its"
    r"|their|some|all|any|each|every|both|no|none|nobody|nothing|everyone|someone|in|on|at|for|from"
    r"|by|with|as|if|when|while|until|since|because|what|why|how|who|where|which|more|most|less"
    r"|today|now|here|one|two|three|few|many|last|next|not|thanks|maybe|to|of|than|or|and|is|are"
    r"|users?|customers?|passengers?|better|good|\w+ly|\w+[^e\W]ed)\b)"
)
_DO = rf"^{_NO_ORDER}[a-z][\w'-]{{0,40}}(?![\w'-])"
_IDLE = (
    r"(?! (?:know|think|worry|understand|mind|believe|care|remember|recall|see|seem|look|work"
    r"|matter"
    r"|have|need|fit|get (?!rid|in)|find|hear|hesitate|panic|mention it|sweat|like"
    r"|bother(?: with| to|$)"
    r"|be (?:shy|sorry|afraid|surprised|silly|shocked|sad|late)|you (?!dare|ever)|forget$|expect"
    r"|support|remind|fully|even know|really)\b)"
)
_PAST_VERB = r"(?:\w*[^e\W]ed|been|seen|heard|had|saw|knew|thought|got|came|went|did|was|were|made)"
_MODAL = r"(?:must|may|can|shall|should|(?:is|are) to|(?:is|are) allowed to|has to|have to)"
_NONE = r"(?:nothing|nobody|no one|no-one|none of .{1,60}|neither of .{1,60})"
_ACTION = (
    r"(?:write|change|deploy|deployment|release|restart|reboot|commit|push|merge|mail|e-mail|email"
    r"|call|downtime|ssh|access|delete|deletion|drop|migration|update|upgrade|edit|purchase|refund"
    r"|exception|secret|password|personal data|pii|dependenc|emoji|notification|scan|cutover"
    r"|failover|rollout|rollback|shortcut|hack|quer|login|modification|contact|transfer|payment"
    r"|booking"
    r"|traffic|plain ?text|comment|retr|pull request|third[- ]part|outage|external|raw|direct"
    r"|manual|production|code change|schema change|new)\w*"
)
_ACTS = (
    r"(?:touch|chang|deploy|merg|log|push|edit|delet|restart|writ|enter|leav|mov|open|run|us"
    r"|access|go"
    r"|get|ship|start|releas|publish|send|sign|press|shar|copi|copy|install|approv|decid|spend|see)"
    r"(?:es|s|e|ies)?\b(?! (?:wrong|through to|lost|stuck|hurt))"
)
_CONSENT = (
    r"(?:approv\w+|sign-?(?:off|s off)|signed off|okay|consent|permission|authori[sz]\w+|go-ahead"
    r"|confirmation|blessing|say-so|green light|(?:change )?ticket|review\w*|second pair of eyes)\b"
)
_DATA_NOUN = (
    r"(?:data|records?|secrets?|keys?|files?|tokens?|credentials?|passwords?|logs|images?"
    r"|everything"
    r"|pii|backups?|code|copies|originals?|evidence)"
)
_STOP = (
    r"(?:stop|abort|halt|pause|quit|bail out|back off|roll ?back|revert|escalate|give up|hand over"
    r"|alert me|page me|call me|notify|shut down|fall back|cancel|suspend|freeze|disconnect)"
)
_LITTLE = (
    r"(?:at (?:most|least)|(?:no|not) (?:more|less|fewer|later|earlier|longer|higher|lower|larger"
    r"|bigger|greater|slower|older) than|(?:fewer|less|more|smaller|shorter|longer|larger) than"
    r"|up to|a maximum of|a minimum of|within|under|below) (?=[$€£]?\d|one|two|three|four|five"
    r"|ten|a |an |half)"
)
_STALE = (
    r"(?:stale|down|full|wrong|broken|dead|tired|missing|corrupt\w*|busy|slow|related|due|confused"
    r"|kidding|joking|on vacation|asleep|lost|dns|the|an?|some|that|because|nice|hard|new|proud"
    r"|in)\b"
)
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|noon|midnight|tomorrow|tonight|eod|\d"

# Orders: they bind whatever else their clause tells.
_FIRM: dict[str, tuple[str, ...]] = {
    "prohibition": (
        rf"^do not{_IDLE}|\b(?:you|we|to|and|or|whatever) do not{_IDLE}",
        r"\bi do not (?:want|wish|accept|agree|approve|allow)\b|\bi (?:forbid|prohibit)\b",
        rf"^never\b(?! (?:mind|a|an|the|again|before|better|in|ever had|{_PAST_VERB})\b)",
        r"\b(?:must|shall|should|(?<!i )(?<!he )(?<!she )(?<!they )will|may|(?:is|are) to|can|agent"
        r"|you|(?:is|are)(?= never (?:to|allowed|okay|acceptable|permitted)))"
        rf" never\b(?! (?:know|mind|believe|have|{_PAST_VERB})\b)",
        r"\b(?:we|you|they|and|agents?) never\b"
        rf"(?! (?:know|mind|have|see|get|{_PAST_VERB}|\w+ed)\b)",
        r"\bnever (?:leaves?|goes|go|enters?|appears?) ",
        r"\b(?:must|shall) not\b(?! have (?:\w+ed|been|had)\b)",
        r"(?<!\bi )(?<!it )(?<!that )(?<!this )\bmay not\b(?! (?:be (?:the|an?)|work|need|have"
        r"|help)\b)",
        r"(?<!\bi )\bshould not (?!take|matter|be (?:the|an?|too|hard|difficult|that|long)\b"
        r"|have|hurt"
        r"|happen|cost|need|surprise|affect)",
        r"\b(?:you|nobody|no one|agents?|the agent) can not\b"
        r"(?! (?:believe|remember|find|see|figure|miss|tell|beat|imagine|make|blame|go wrong|get"
        r"|log|help)\b)",
        r"\bwe can not (?:have|afford|risk|accept|allow|let|lose|ship|deploy|go|delete|use|share"
        r"|send"
        r"|store|expose|change|touch|release|tolerate|break|merge|move|be)\b",
        r"\b(?:refrain|abstain) from\b|^(?:always )?avoid\b|^steer clear\b|\bhands off\b",
        r"^(?:stay|keep)(?: .{1,60})? (?:away from|out of|off|clear of|away)\b",
        r"\bleave .{1,60}\b(?:alone|untouched|unchanged|intact|as (?:it |they )?(?:is|are))(?: |$)",
        r"\b(?:under|in) no (?:circumstances?|case)\b|\b(?:on no account|at no (?:time|point))\b",
        r"\boff[- ]limits\b|\bno[- ]go (?:area|zone)\b|\bout of (?:bounds|scope)\b",
        rf"\b{_NONE} (?:but \w+ |except \w+ )?(?:{_MODAL}|{_ACTS})\b",
        r"^(?:stop|quit|cease) \w+ing\b|\b(?:careful|care|sure|try) (?:not to|to not) ",
        r"\bthere (?:must|should|may|shall|can) be (?:no|not)\b|\bnot yours\b|\bno business\b",
        r"^(?:skip|ignore|exclude|omit) (?!(?:my|the) (?:last|previous|typo)\b)",
        r"^(?:feel free|you (?:may|can|are allowed)|go ahead).{1,80} but not ",
    ),
    "precondition": (
        rf"^{_STOP}\b.*\b(?:if|when|once|unless|as soon as)\b",
        r"^(?:wait|hold|pause|suspend|freeze|delay|postpone|keep|leave)\b.*\b(?:until|till)\b",
        r"^(?:wait for|hold off)\b|\buntil further notice\b|\buntil (?:i|we) (?:say|approve"
        r"|confirm|tell)",
        r"\bunless (?:i|we|you) (?:say|tell|have|get|ask|approve|explicitly)\b|^only then\b",
        r"^only (?:after|if|when|once|with|during|on|in|between|use|from|then)\b"
        r"|^only (?!(?:kidding|joking|because|an?|one|two|three|the|my|our|this|that|he|she|it"
        r"|they|some"
        r"|half|\d+)\b)",
        r"\b(?:and |^)not (?:before|earlier|sooner|until|later)\b|^when in doubt\b"
        r"|^in case of doubt\b",
        rf"{_DO}.* first(?:$| and then )",
    ),
    "approval": (
        r"\bask (?:me|us|him|her|for|\w+)(?: \w+){0,2} (?:first|before)\b"
        r"|^(?:always )?ask (?:first|before)\b",
        rf"\b(?:get|obtain|seek|request|secure|await|wait for)\b .{{0,60}}\b{_CONSENT}",
        r"^(?:always )?(?:check|confirm|clear|consult|coordinate|align|verify)(?: it| this"
        r"| in)? with\b",
        r"^(?:suggest|propose|advise|recommend)\b.{0,30} only$",
        r"^consult\b|^run (?:it|this|that|everything|them) (?:by|past)\b",
        r"^(?:tell|show|inform|notify|warn|ping|call|let) (?:me|us)\b.*\bbefore\b",
        r"\bwait for my\b|\bleave .{1,40}\b(?:decision|call|choice) (?:to|with)\b",
    ),
    "limit": (
        r"^(?:keep|stay|remain|hold)\b.* (?:under|below|above|within|between|less than"
        r"|at (?:most|least))\b",
        r"^(?:limit|cap|restrict|confine)\b.* (?:to|at)\b|\brestricted to\b",
        r"\bnot a (?:single )?(?:cent|minute|second|byte|penny|day|dollar) (?:more|longer|over)\b",
        r"^budget\b.{0,20}\d|\bhard (?:limit|cap|stop)\b|\bat the latest\b|^you have until\b",
    ),
    "obligation": (
        r"(?:^|\b(?:please|and|to|must|should) )(?:make sure|ensure|be sure to|see to it"
        r"|take care)\b",
        r"^remember to\b|^do not forget\b|^(?:you )?always \w|^always$|^at all times\b",
        r"\b(?:you|agents?|the agent|we) (?:have|need|are required|are expected|are obliged) to\b"
        r"(?! (?:know|talk|hurry|worry|see)\b)",
        r"\b(?:must|should|shall|is|are|to) always \w|\bshall\b(?! (?:we|i)\b)",
        r"^(?:from now on|going forward|from here on|henceforth|without exception"
        r"|no matter what)\b",
        r"\bunder all circumstances\b|\bin all cases\b|^(?:stick to|adhere to|comply with|follow"
        r"|preserve"
        r"|retain|maintain|respect|stay (?:on|with|in))\b",
        r"^(?:log|record|report|document|note|tag|sign|label|keep|encrypt"
        r"|review)\b.{0,40}\b(?:every|each)\b",
        r"\bi (?:need|want|expect) you to\b.{0,80}\b(?:every|each|always|all|never)\b",
    ),
}
# Rules told as facts: no rule where the clause tells what happened or is supposed.
_LOOSE: dict[str, tuple[str, ...]] = {
    "prohibition": (
        r"(?<!i am )(?<!am )\b(?:is|are|be)(?: \w+ly)? not (?:to|allowed|permitted|acceptable"
        r"|okay|authori)",
        r"\b(?:is|are|stays?|remains?)(?: \w+ly)? (?:forbidden|prohibited|banned|suspended"
        r"|verboten)\b",
        r"\b(?:is|are|as|stays?) read-only\b|\bunacceptable\b|\bnon-negotiable\b",
        r"\b(?:main|master|schema|branch|release|code|api|config|scope|interface|spec)\b.{0,20}"
        r" is (?:frozen|locked)\b",
        rf"^(?:no|zero|not a single|not one) (?:[\w-]+ ){{0,2}}{_ACTION}"
        r"(?!.{0,40} (?:yet|so far|found|needed|is|are|has|have)\b)",
        rf"\b{_NONE} (?:is|are) (?:\w+ed|written)\b",
        rf"\b{_DATA_NOUN} stays? (?:in|out|inside|within|on)\b",
        r"\bcan not be (?:touched|shared|disclosed|skipped|bypassed|disabled|stopped|deleted)\b",
    ),
    "precondition": (
        r"^(?:no|nothing|nobody)\b.* (?:without|until|before|unless|after)\b",
        rf"{_DO}.* (?:before|prior to|unless)\b|{_DO}.* only (?:after|if|when|once|with|during"
        r"|on|from|in)\b",
        rf"\b(?:{_MODAL}|possible|allowed|permitted|happens?)\b.{{0,80}} only\b|\b{_MODAL} only\b",
        r"\byou (?:may|can) .{1,60} (?:as soon as|once|after|provided)\b|^provided that\b",
        r"\bembargo (?:holds|lasts|ends)\b|^without .{1,60} no \w+",
    ),
    "approval": (
        rf"\b(?:needs?|requires?|must have|have to have)(?: \S+){{0,5}} {_CONSENT}",
        rf"\b{_CONSENT}.{{0,20}} (?:is|are)? ?(?:required|needed|mandatory)\b"
        rf"|\bsubject to .{{0,40}}{_CONSENT}",
        rf"\bwithout (?:\S+ ){{0,4}}{_CONSENT}|\b(?:nothing|nobody|no one) (?:but|else|more)\b",
        rf"^only .{{1,60}} (?:{_MODAL}|is allowed|are allowed)|\bthe only .{{1,60}} you {_MODAL}",
        r"^i (?:want to|have to|must|will) (?:see|approve|review|sign off|confirm|check)\b"
        r"|^i approve all\b",
        r"^(?:all|any|every|each|anything|everything)\b.* go(?:es)? through\b"
        r"|^everything else (?:needs|is)\b",
    ),
    "limit": (
        rf"{_DO}.* {_LITTLE}|^{_LITTLE}(?!.* (?:came|is|are|takes?|failed)\b)|^(?:each"
        r"|every)\b.* at most\b",
        rf"\b{_MODAL}\b.{{0,80}} {_LITTLE}|{_DO}.* by (?:the end|{_DAY})|\bdue (?:by|on|before)\b",
        r"\bmax(?:imum)?(?: of)? \d|^max(?:imum)?(?: \S+){1,3} (?:is )?\d|\b(?:bound|limit"
        r"|cap)\b.{0,30} is \d",
        r"\b(?:capped|limited) (?:at|to)\b|^no .{1,40} (?:bigger|larger|longer|more|higher"
        r"|older) than\b",
        r"\b(?:no|not) (?:higher|lower|later|larger|longer|older) than\b|\b(?:words|pages"
        r"|paragraphs) max\b"
        r"|^anything (?:over|above|beyond)\b",
    ),
    "obligation": (
        rf"(?<!there )(?<!someone )\bmust\b(?! not\b| (?:be {_STALE}|have \w+|mean|say|admit"
        r"|confess)\b)",
        r"(?<!\bi )(?<!not )\b(?:has|have|needs?) to (?!be (?:the|an?|some)\b|do with\b)",
        r"\b(?:is|are)(?: \w+ly)? (?:mandatory|compulsory|obligatory|required|essential|crucial"
        r"|a must)\b",
        r"\bit is (?:important|essential|mandatory|necessary|crucial|vital) (?:that|to)\b",
        r"\b(?:is|are) to be \w+ed\b|^(?:every|each|all|any) .{1,60} (?:should|needs?|requires?)\b",
        r"\b(?:policy|rules?) (?:requires?|is|are)\b|\byou should (?:always|only|use|ask|keep)\b",
    ),
}
# Read across the clauses of a sentence.
_WHOLE = re.compile(
    r"(?:(?:house |hard |ground |golden )?(?:rules?|constraints?|requirements?|important|policy"
    r"|condition"
    r"|restrictions?|deadline)): "
    r"|(?:if|in case|whenever|each time|every time|unless|as long as|while|until|before|prior to)\b"
    rf"(?! (?:possible|i |you (?:want|like|can|need|prefer)))[^,]*, (?:then |please )?(?={_DO[1:]})"
    r"|(?:as long as|while|until|during|if)\b[^,]*, (?:no|nobody|nothing|no one)\b"
    rf"|{_DO}[^,]*, (?:and )?not (?:on|in|from|to|with|the)\b"
)


def _any(table: dict[str, tuple[str, ...]]) -> re.Pattern[str]:
    return re.compile("|".join(pattern for kind in table.values() for pattern in kind))


_FIRMLY, _LOOSELY = _any(_FIRM), _any(_LOOSE)
_ASKED = re.compile(rf"do not{_IDLE}(?! you\b)|never (?!mind\b)")
_FRESH = re.compile(r"[.,;:]?\n(?=(?:please|do not|never|make sure|always) )")


def straight(text: str) -> str:
    """The text with straight quotes, each character where it was."""
    return text.translate(_QUOTES)


def plain(piece: str) -> str:
    """A sentence as the patterns read it."""
    text = _CODE.sub("x", straight(piece)).lower()
    text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    for spelling, full in _SPELLING:
        text = spelling.sub(full, text)
    text = _FRESH.sub(". ", text).replace("\n", " ")
    return _REPORTED.sub("", _QUOTED.sub("", text)).replace('"', "")


def binds(piece: str) -> bool:
    """Whether a sentence, with its line breaks, binds whoever it is told."""
    if _DATA.match(piece):
        return False
    text = plain(piece)
    clauses = [_LEAD.sub("", clause, count=1) for clause in _CLAUSE.split(text)]
    if text.rstrip("') _").endswith("?"):
        return any(_ASKED.match(clause) for clause in clauses)
    opening = _LEAD.sub("", text, count=1)
    if _WHOLE.match(opening) and not _SUPPOSED.match(opening):
        return True
    return any(map(_clause_binds, clauses))


def _clause_binds(clause: str) -> bool:
    described = _DESCRIBED.match(clause)
    said = clause[: described.end()] if described else clause
    if _SUPPOSED.match(said):
        return False
    return bool(_FIRMLY.search(said) or (_LOOSELY.search(said) and not _PAST.search(said)))
