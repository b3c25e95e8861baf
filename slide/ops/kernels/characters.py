"""The characters of rows as text, as bytes of ASCII."""

TAB, LF, CR, SPACE = 9, 10, 13, 32
HASH, PLUS, COMMA, MINUS, DOT, COLON = 35, 43, 44, 45, 46, 58
ZERO, UPPER_E, LOWER_E = 48, 69, 101
