// The instructions of a pickle, as CPython's Lib/pickletools.py names them.
#pragma once

#include <cstdint>

namespace cachalot::trace {

enum class PickleOpcode : std::uint8_t {
  // Numbers, None and bools. A "line" is decimal text.
  kInt = 'I',       // a line
  kLong = 'L',      // a line
  kFloat = 'F',     // a line
  kBinInt = 'J',    // 4 bytes, signed
  kBinInt1 = 'K',   // 1 byte
  kBinInt2 = 'M',   // 2 bytes
  kLong1 = 0x8a,    // 1 byte of length, and as many of a number
  kLong4 = 0x8b,    // 4 bytes of length
  kBinFloat = 'G',  // 8 bytes, the highest first
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,

  // Text and bytes: a line, or so many bytes of length and as many of text.
  kString = 'S',            // a line in quotes
  kUnicode = 'V',           // a line
  kShortBinString = 'U',    // 1
  kBinString = 'T',         // 4
  kShortBinUnicode = 0x8c,  // 1
  kBinUnicode = 'X',        // 4
  kBinUnicode8 = 0x8d,      // 8
  kShortBinBytes = 'C',     // 1
  kBinBytes = 'B',          // 4
  kBinBytes8 = 0x8e,        // 8
  kByteArray8 = 0x96,       // 8

  // Containers: empty, of what is above the mark, or of the topmost one to three; and what is added.
  kEmptyList = ']',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kEmptySet = 0x8f,
  kList = 'l',
  kTuple = 't',
  kDict = 'd',
  kFrozenSet = 0x91,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kAddItems = 0x90,

  // The stack and the memo, whose places are a line, 1 or 4 bytes.
  kMark = '(',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kGet = 'g',
  kBinGet = 'h',
  kLongBinGet = 'j',

  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
};

// Those that make no data but look something up, call it, or expect it from outside.
struct RefusedOpcode {
  std::uint8_t opcode;
  const char* name;
};
inline constexpr RefusedOpcode kRefusedOpcodes[] = {
    {'c', "GLOBAL"},    {0x93, "STACK_GLOBAL"}, {'R', "REDUCE"},
    {'b', "BUILD"},     {'i', "INST"},          {'o', "OBJ"},
    {0x81, "NEWOBJ"},   {0x92, "NEWOBJ_EX"},    {0x82, "EXT1"},
    {0x83, "EXT2"},     {0x84, "EXT4"},         {'P', "PERSID"},
    {'Q', "BINPERSID"}, {0x97, "NEXT_BUFFER"},  {0x98, "READONLY_BUFFER"},
};

}  // namespace cachalot::trace
