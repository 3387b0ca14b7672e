"""The phrases that bind an agent, and those that only look like it.

A sentence is read clause by clause, in the plain form that `binding` gives it. So "We never
touched prod, so don't start now" is bound by its second clause alone.
"""

from __future__ import annotations

import re

__all__ = ["binds"]

# Every pattern here must take linear time on any text, as a message may be of any length: a
# pasted table has runs of thousands of spaces. A gap is therefore bounded, or there is one
# `.*` in a pattern that can start in one place only.

_CLAUSE = re.compile(
    r"[.!?;:,](?= |$)|[()|—–]| -+ |(?<!nobody)(?<!no one)(?<!nothing) but (?!not )| (?:so|because) "
    r"| to(?= (?:do not|never) )| (?:and|or|then|now|please)(?= (?:do not|never|make sure|only|ask"
    r"|please|wait for|stop|avoid|leave|keep|always) )"
)
_LEAD = re.compile(
    r"^[\W_]*(?:(?:please|and|but|so|then|also|just|or|okay|really|kindly|now|next|again|otherwise"
    r"|hey|hi|hello|instead|i said|well|yes|note that|in any case|if you must|for this \w+"
    r"|in this \w+|this time|in future|say|we said) )*"
)
_DESCRIBED = re.compile(  # what a task asks to find out or to tell is its subject, not its order
    r"(?:(?:could|can|would|will) you )?(?:find|list|count|show|explain|summari[sz]e|describe"
    r"|document|figure|tell|draft|plot|translate|identify|analy[sz]e)\b.*?\b(?:that|who|whose|which"
    r"|why|how|whether|what|where|saying)\b|(?:check|see|look|ask)\b.{0,30}\b(?:whether|why|how"
    r"|if)\b"
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
    r"|their|some|all|any|each|every|both|no|none|nobody|nothing|everyone|everything|anything"
    r"|someone|somebody|in|on|at|for|from|by|with|as|if|when|while|until|since|because|what|why|how"
    r"|who|where|which|more|most|less|today|now|here|one|two|three|few|many|last|next|not|thanks"
    r"|maybe|to|of|than|or|and|is|are|users?|customers?|passengers?|better|good|\w+ly"
    r"|\w+[^e\W]ed)\b)"
)
_DO = rf"^{_NO_ORDER}[a-z][\w'-]{{0,40}}(?![\w'-])"
_IDLE = (
    r"(?! (?:know|think|worry|understand|mind|believe|care|remember|recall|see|seem|look|work"
    r"|matter|have|need|fit|get (?!rid|in)|find|hear|hesitate|panic|mention it|sweat|like"
    r"|bother(?: with| to|$)|be (?:shy|sorry|afraid|surprised|silly|shocked|sad|late)|you (?!dare"
    r"|ever)|forget$|expect|support|remind|fully|even know|really)\b)"
)
_PAST_VERB = (
    r"(?:\w*[^e\W]ed|been|seen|heard|had|saw|knew|thought|got|came|went|did|was|were|made|left|gone"
    r"|lost)"
)
_MODAL = r"(?:must|may|can|shall|should|(?:is|are) to|(?:is|are) allowed to|has to|have to)"
_NONE = r"(?:nothing|nobody|no one|no-one|none of .{1,60}|neither of .{1,60})"
_ACTION = (
    r"(?:write|change|deploy|deployment|release|restart|reboot|commit|push|merge|mail|e-mail|email"
    r"|call|downtime|ssh|access|delete|deletion|drop|migration|update|upgrade|edit|purchase|refund"
    r"|exception|secret|password|personal data|pii|dependenc|emoji|notification|scan|cutover"
    r"|failover|rollout|rollback|shortcut|hack|quer|login|modification|contact|transfer|payment"
    r"|booking|traffic|plain ?text|comment|retr|pull request|third[- ]part|outage|external|raw"
    r"|direct|manual|production|code change|schema change|new)\w*"
)
_ACTS = (
    r"(?:touch|chang|deploy|merg|log|push|edit|delet|restart|writ|enter|leav|mov|open|run|us|access"
    r"|go|get|ship|start|releas|publish|send|sign|press|shar|copy|install|approv|decid|spend"
    r"|see)(?:es|s|e|ies)?\b(?! (?:wrong|through to|lost|stuck|hurt))"
)
_CONSENT = (
    r"(?:approv\w+|sign-?(?:off|s off)|signed off|okay|consent|permission|authori[sz]\w+|go-ahead"
    r"|confirmation|blessing|say-so|green light|(?:change )?ticket|review\w*|second pair of eyes)\b"
)
_SURE = r"(?:make sure|ensure|be sure to|see to it|take care)\b"
_DATA_NOUN = (
    r"(?:data|records?|secrets?|keys?|files?|tokens?|credentials?|passwords?|logs|images?"
    r"|everything|pii|backups?|code|copies|originals?|evidence)"
)
_STOP = (
    r"(?:stop|abort|halt|pause|quit|bail out|back off|roll ?back|revert|escalate|give up|hand over"
    r"|alert me|page me|call me|notify|shut down|fall back|cancel|suspend|freeze|disconnect)"
)
_LITTLE = (
    r"(?:at (?:most|least)|(?:no|not) (?:more|less|fewer|later|earlier|longer|higher|lower|larger"
    r"|bigger|greater|slower|older) than|(?:fewer|less|more|smaller|shorter|longer|larger) than"
    r"|up to|a maximum of|a minimum of|within|under|below) (?=[$€£]?\d|one|two|three|four|five|ten"
    r"|a |an |half)"
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
        rf"^never\b(?! (?:mind|a (?:dull|problem)|an issue|the (?:same|case)|again|before|better|in"
        rf"|ever had|{_PAST_VERB})\b)",
        r"\b(?:must|shall|should|(?<!i )(?<!he )(?<!she )(?<!they )will|may|(?:is|are) to|can|agent"
        r"|you|(?:is|are)(?= never (?:to|allowed|okay|acceptable|permitted)))"
        rf" never\b(?! (?:know|mind|believe|have|{_PAST_VERB})\b)",
        r"\b(?:we|you|they|and|agents?) never\b"
        rf"(?! (?:know|mind|have|see|get|{_PAST_VERB}|\w+ed)\b)",
        r"\bnever (?:leaves?|goes|go|enters?|appears?) ",
        r"\b(?:must|shall) not\b(?! have (?:\w+ed|been|had)\b)",
        r"\b(?<!\bi )(?<!it )(?<!that )(?<!this )may not\b(?! (?:be (?:the|an?)|work|need|have"
        r"|help)\b)",
        r"\b(?<!\bi )should not (?!take|matter|be (?:the|an?|too|hard|difficult|that|long)\b|have"
        r"|hurt|happen|cost|need|surprise|affect)",
        r"\b(?:you|nobody|no one|agents?|the agent) can not\b(?! (?:believe|remember|find|see"
        r"|figure|miss|tell|beat|imagine|make|blame|go wrong|get|log|help)\b)",
        r"\bwe can not (?:have|afford|risk|accept|allow|let|lose|ship|deploy|go|delete|use|share"
        r"|send|store|expose|change|touch|release|tolerate|break|merge|move|be)\b",
        r"\b(?:refrain|abstain) from\b|^(?:always )?avoid\b|^steer clear\b|\bhands off\b",
        r"^(?:stay|keep)(?: .{1,60})? (?:away from|out of|off|clear of|away)\b",
        r"\bleave .{1,60}\b(?:alone|untouched|unchanged|intact|as (?:it |they )?(?:is|are))(?: |$)",
        r"\b(?:under|in) no (?:circumstances?|case)\b|\b(?:on no account|at no (?:time|point))\b",
        r"\boff[- ]limits\b|\bno[- ]go (?:area|zone)\b|\bout of (?:bounds|scope)\b",
        rf"\b{_NONE} (?:but \w+ |except \w+ )?(?:{_MODAL}|{_ACTS})\b",
        r"^(?:stop|quit|cease) \w+ing\b|\b(?:careful|care|sure|try) (?:not to|to not) ",
        r"\bthere (?:must|should|may|shall|can) be (?:no|not)\b|\bnot yours\b|\bno business\b",
        r"^(?:refuse|decline|reject) |^(?:make|do|take|send|open|use|add|change|delete"
        r"|write) no(?:thing|ne)?\b",
        r"^i'd rather (?:you|we) |\bnever to\b|\b(?:said|says|wants|asked|told)(?: \w+)? not to \w"
        r"|\b(?:we|i) agreed (?:not )?to\b",
        r"^(?:skip|ignore|exclude|omit) (?!(?:my|the) (?:last|previous|typo)\b)",
        r"^(?:feel free|you (?:may|can|are allowed)|go ahead).{1,80} but not ",
    ),
    "precondition": (
        rf"^{_STOP}\b.*\b(?:if|when|once|unless|as soon as)\b",
        r"^(?:wait|hold|pause|suspend|freeze|delay|postpone|keep|leave)\b.*\b(?:until|till)\b",
        r"^(?:wait for|hold off)\b|\buntil further notice\b|\buntil (?:i|we) (?:say|approve|confirm"
        r"|tell)",
        r"\bunless (?:i|we|you) (?:say|tell|have|get|ask|approve|explicitly)\b|^only then\b",
        r"^only (?:after|if|when|once|with|during|on|in|between|use|from|then)\b"
        r"|^only (?!(?:kidding|joking|because|an?|one|two|three|the|my|our|this|that|he|she|it|they"
        r"|some|half|\d+)\b)",
        r"\b(?:and |^)not (?:before|earlier|sooner|until|later)\b|^when in doubt\b"
        r"|^in case of doubt\b",
        rf"{_DO}.* first(?:$| and then )",
    ),
    "approval": (
        r"\bask (?:me|us|him|her|for|\w+)(?: \w+){0,2} (?:first|before)\b|^(?:always )?ask (?:first"
        r"|before)\b",
        rf"\b(?:get|obtain|seek|request|secure|await|wait for)\b .{{0,60}}\b{_CONSENT}",
        r"^(?:always )?(?:check|confirm|clear|consult|coordinate|align|verify)(?: it| this"
        r"| in)? with\b",
        r"^(?:suggest|propose|advise|recommend)\b.{0,30} only$",
        r"^(?:politely )?(?:escalate|redirect)\b|^consult\b|^run (?:it|this|that|everything"
        r"|them) (?:by|past)\b",
        r"^(?:tell|show|inform|notify|warn|ping|call|let) (?:me|us)\b.*\bbefore\b",
        r"\bwait for my\b|\bleave .{1,40}\b(?:decision|call|choice) (?:to|with)\b",
    ),
    "limit": (
        r"^(?:keep|stay|remain|hold)\b.* (?:under|below|above|within|between|less than|at (?:most"
        r"|least))\b",
        r"^(?:limit|cap|restrict|confine)\b.* (?:to|at)\b|\brestricted to\b",
        r"\bnot a (?:single )?(?:cent|minute|second|byte|penny|day|dollar) (?:more|longer|over)\b",
        r"^budget\b.{0,20}\d|\bhard (?:limit|cap|stop)\b|\bat the latest\b|^you have (?:until"
        r"|\w+ (?:hours?|minutes?|days?))\b",
        r"\d.{0,30}\b(?:tops|max)$",
    ),
    "obligation": (
        rf"^{_SURE}|\b(?:please|and|to|must|should) {_SURE}",
        r"^remember to\b|^do not forget\b|^(?:you )?always \w|^always$|^at all times\b",
        r"\b(?:you|agents?|the agent|we) (?:have|need|are required|are expected"
        r"|are obliged) to\b(?! (?:know|talk|hurry|worry|see)\b)",
        r"\b(?:must|should|shall|is|are|to) always \w|\bshall\b(?! (?:we|i)\b)",
        r"^(?:from now on|going forward|from here on|henceforth|without exception|no matter what"
        r"|whatever happens)\b",
        rf"^use only\b|\bexclusively$|^use\b.* (?:for|in) (?:all|every|any)\b|{_DO}.* every (?:\d"
        rf"|step|time)",
        r"\bunder all circumstances\b|\bin all cases\b|^(?:stick to|adhere to|comply with|follow"
        r"|preserve|retain|maintain|respect|stay (?:on|with|in))\b",
        r"^(?:log|record|report|document|note|tag|sign|label|keep|encrypt"
        r"|review)\b.{0,40}\b(?:every|each)\b",
        r"\bi (?:need|want|expect) you to\b.{0,80}\b(?:every|each|always|all|never)\b",
    ),
}
# Rules told as facts: no rule where the clause tells what happened or is supposed.
_LOOSE: dict[str, tuple[str, ...]] = {
    "prohibition": (
        r"\b(?<!i am )(?<!am )(?:is|are|be)(?: \w+ly)? not (?:to|allowed|permitted|acceptable|okay"
        r"|authori)",
        r"\b(?:is|are|stays?|remains?)(?: \w+ly)? (?:forbidden|prohibited|banned|suspended"
        r"|verboten)\b",
        r"\b(?:is|are|as|stays?) read-only\b|\bunacceptable\b|\bnon-negotiable\b",
        r"\b(?:main|master|schema|branch|release|code|api|config|scope|interface"
        r"|spec)\b.{0,20} is (?:frozen|locked)\b",
        rf"^(?:no|zero|not a single|not one) (?:[\w-]+ ){{0,2}}{_ACTION}"
        r"(?!.{0,40} (?:yet|so far|found|needed|is|are|has|have)\b)",
        rf"\b{_NONE} (?:is|are) (?:\w+ed|written)\b",
        rf"\b{_DATA_NOUN} stays? (?:in|out|inside|within|on)\b",
        r"\bcan not be (?:touched|shared|disclosed|skipped|bypassed|disabled|stopped|deleted)\b",
    ),
    "precondition": (
        r"^(?:no|nothing|nobody)\b.* (?:without|until|before|unless|after)\b",
        rf"^\w+s only happen\b|{_DO}.* (?:before|prior to|unless|without (?:\w+ing|any|downtime))\b"
        rf"|{_DO}.* only (?:after|if|when|once|with|during"
        r"|on|from|in)\b",
        rf"\b(?<!\bi )(?<!\bwe )(?:{_MODAL}|possible|allowed|permitted|happens?)\b.{{0,80}} only\b"
        rf"|\b(?<!\bi )(?<!\bwe ){_MODAL} only\b",
        r"\byou (?:may|can) .{1,60} (?:as soon as|once|after|provided)\b|^provided that\b",
        r"\bembargo (?:holds|lasts|ends)\b|^without .{1,60} no \w+|^i need .* without\b",
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
        r"|paragraphs) max\b|^anything (?:over|above|beyond)\b",
    ),
    "obligation": (
        rf"\b(?<!there )(?<!someone )must\b(?! not\b| (?:be {_STALE}|have (?:\w+ )?{_PAST_VERB}\b"
        rf"|mean|say|admit"
        r"|confess)\b)",
        r"\b(?<!\bi )(?<!not )(?:has|have) to (?!be (?:the|an?|some)\b|(?:do with|see|say|know"
        r"|talk)\b)",
        r"\b(?<!\bi )(?<!not )needs? to (?:be \w+ed|stay|keep|remain|pass|have|carry)\b",
        r"^\w+s should (?:be|have|use|stay|contain|include)\b|^\w+ (?:is|are) not$",
        r"^(?:every|any)thing (?:but|except) .{1,60} (?:is|are) (?:fair|fine|okay|allowed)\b",
        r"\b(?:is|are)(?: \w+ly)? (?:mandatory|compulsory|obligatory|required|essential|crucial"
        r"|a must)\b",
        r"\bit is (?:important|essential|mandatory|necessary|crucial|vital) (?:that|to)\b",
        r"\b(?:is|are) to be \w+ed\b|^(?:every|each|all|any) (?!i |we ).{1,60} (?:should|needs?"
        r"|requires?)\b",
        r"\b(?:policy|rules?) requires?\b|\byou should (?:always|only|use|ask|keep)\b",
    ),
}
# Read across the clauses of a sentence.
_WHOLE = re.compile(
    r"(?:(?:house |hard |ground |golden )?(?:rules?|constraints?|requirements?|important|policy"
    r"|condition|restrictions?|deadline)): |(?:if|in case|whenever|each time|every time|unless"
    r"|as long as|while|until|before|prior to)\b"
    rf"(?! (?:possible|i |you (?:want|like|can|need|prefer)))[^,]*, (?:then |please )?(?={_DO[1:]})"
    r"|(?:as long as|while|until|during|if)\b[^,]*, (?:no|nobody|nothing|no one)\b"
    rf"|{_DO}[^,]*, (?:and )?not (?:on|in|from|to|with|the)\b"
)


def _alternatives(patterns: str) -> list[str]:
    """The parts between the bars that no group encloses."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[[^\]]*\]|.", patterns):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return parts


class _Table:
    """Patterns as two regular expressions: what a clause opens with is tried once, not anywhere."""

    def __init__(self, kinds: dict[str, tuple[str, ...]]) -> None:
        parts = [part for kind in kinds.values() for p in kind for part in _alternatives(p)]
        opening = [part[1:] for part in parts if part.startswith("^")]
        word = [part[2:] for part in parts if part.startswith(r"\b")]
        rest = [part for part in parts if not part.startswith(("^", r"\b"))]
        self.opening = re.compile("|".join(opening))
        self.inside = re.compile("|".join([rf"\b(?:{'|'.join(word)})", *rest]))

    def finds(self, clause: str) -> bool:
        return bool(self.opening.match(clause) or self.inside.search(clause))


_FIRMLY, _LOOSELY = _Table(_FIRM), _Table(_LOOSE)
_ASKED = re.compile(
    rf"(?:could|can|would|will) you .*\bwithout \w+ing\b|do not{_IDLE}(?! you\b)|never (?!mind\b)"
)


def binds(text: str) -> bool:
    """Whether a sentence in its plain form binds whoever it is told."""
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
    return _FIRMLY.finds(said) or (_LOOSELY.finds(said) and not _PAST.search(said))
