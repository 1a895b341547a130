"""Texts that tell tokenizers apart: scripts, emoji, combining marks, line ends, all kinds of white space, long runs."""

from __future__ import annotations

PROSE = (
    "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that "
    "Alice had not a moment to think about stopping herself before she found herself falling down a very deep well.\n"
    "“Well!” thought Alice to herself, “after such a fall as this, I shall think nothing of tumbling down stairs!”\n"
    "I'd say they've won; we'll see what's left — it's 1,234.50 or 20260731, isn't it? I'D SAY THEY'VE WON.\r\n\r\n"
)
TRICKY = (
    "naïve cafe\u0301 Ångström Straße ﬁne ſtraight it'ſ",
    "中文分词没有空格，日本語もそうです。한국어는 띄어 씁니다.",
    "👍🏽 👩‍👩‍👧‍👦 🇨🇭 emoji🙂text ❤️",
    "हिन्दी में संयुक्ताक्षर, ภาษาไทย, العَرَبِيَّة, עִבְרִית",
    "٣٤٥ Ⅻ ½ ²³ 12345678901234567890 3.14e-10",
    "line\r\nends\r\rmixed\n\r\n  \n\tindented\n    four\n",
    "white\u00a0space\u2003of\u3000all\u2028kinds\u2029\u1680\u202f\u205f.",
    "\ufeffmark\ufeff \ufeff\ufeffword next\u0085line\u0085\u0085 \x1cfs\x1d\x1e\x1f \u180emvs \u200bzws",
    "def f(x):\n\treturn {'a': [1, 2, 3], \"b\": x**2}  # comment\n",
    "'s't're've'm'll'd 'S'T'RE 'x '' ''' don''t",
    "   leading and trailing   ",
    " " * 70 + "x" + "\n" * 9 + "\t" * 5,
    "a" * 300 + "ab" * 200 + "!" * 100 + "=-" * 60 + "7" * 50,
    "\x00\x01\x7f\x80\x9f\xad control",
    "",
    " ",
    "\n\n",
)
CORPUS = [PROSE, *TRICKY]
