package custom.concerns.files_test

import data.custom.concerns.files

_outside(path) := {{
	"code": "files.outside",
	"message": "The path leads out of the working folder.",
	"details": {"path": path},
}}

_hidden(path) := {{
	"code": "files.hidden",
	"message": "The path leads to a hidden file or folder.",
	"details": {"path": path},
}}

_cases := {
	"a file": ["notes.txt", set()],
	"a file in a folder": ["logs/build.log", set()],
	"this folder": ["./notes.txt", set()],
	"two dots in a name": ["a..b", set()],
	"the folder above": ["..", _outside("..")],
	"out and in again": ["logs/../../x", _outside("logs/../../x")],
	"from the root": ["/etc/passwd", _outside("/etc/passwd")],
	"a hidden file": [".private", _hidden(".private")],
	"in a hidden folder": ["logs/.git/config", _hidden("logs/.git/config")],
	"outside and hidden": ["../.ssh", (_outside("../.ssh") | _hidden("../.ssh"))],
	"no text": [7, _outside(7)],
}

test_a_path[name] if {
	some name, [path, expected] in _cases
	files.deny == expected with input as {"context": {"arguments": {"path": path}}}
}

test_several_paths if {
	found := files.deny with input as {"context": {"arguments": {"paths": ["notes.txt", "..", ".private"]}}}
	found == _outside("..") | _hidden(".private")
}

test_no_path if {
	found := files.deny with input as {"context": {"arguments": {"pattern": ".."}}}
	found == set()
}
