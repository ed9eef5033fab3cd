# Small and capital letters. WebAssembly has an older Unicode than OPA, so `lower` and `upper` differ for the letters below.
package authz.lib.text

# The text in small letters.
lowercase(text) := concat("", [object.get(_small, letter, lower(letter)) | some letter in split(text, "")]) if is_string(text)

# The text in capital letters.
uppercase(text) := concat("", [object.get(_capital, letter, upper(letter)) | some letter in split(text, "")]) if is_string(text)

_small := {capital: _smalls[at] | some at, capital in _capitals}

_capital := {small: _capitals[at] | some at, small in _smalls}

_capitals := split("ⰯꟀꟇꟉꟐꟖꟘꟵ𐕰𐕱𐕲𐕳𐕴𐕵𐕶𐕷𐕸𐕹𐕺𐕼𐕽𐕾𐕿𐖀𐖁𐖂𐖃𐖄𐖅𐖆𐖇𐖈𐖉𐖊𐖌𐖍𐖎𐖏𐖐𐖑𐖒𐖔𐖕", "")

_smalls := split("ⱟꟁꟈꟊꟑꟗꟙꟶ𐖗𐖘𐖙𐖚𐖛𐖜𐖝𐖞𐖟𐖠𐖡𐖣𐖤𐖥𐖦𐖧𐖨𐖩𐖪𐖫𐖬𐖭𐖮𐖯𐖰𐖱𐖳𐖴𐖵𐖶𐖷𐖸𐖹𐖻𐖼", "")
