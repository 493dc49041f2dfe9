// The vocabulary of a random model: it can tokenise every text.
//
//   0 <unk>  1 <s>  2 </s>  3 <|im_start|>  4 <|im_end|>     control
//   5 to 260                                                 the bytes: what no word covers
//   261 …                                                    words that can be spoken
//
// Words are a space and letters, a consonant and a vowel in turn: " b", " ba", " bab". Each word's
// beginnings are words, too, so that merging pairs from the space on finds it, and what the model
// writes is tokenised into the same tokens again when it comes back in a conversation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cachalot::llama {

struct RandomVocabulary {
  static constexpr std::uint32_t kUnknown = 0, kBegin = 1, kEnd = 2, kTurnEnd = 4;

  std::vector<std::string> texts;
  std::vector<float> scores;        // falling: shorter words first
  std::vector<std::int32_t> kinds;  // as gguf's tokenizer.ggml.token_type has them

  // @param tokens  at least 262: the tokens above, and one word
  static RandomVocabulary make(std::uint32_t tokens);
};

}  // namespace cachalot::llama
