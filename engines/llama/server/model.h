// A model file and its vocabulary: texts and conversations to tokens, tokens to bytes.
//
// @threads any may tokenise; the weights are shared by all contexts
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "request.h"

namespace cachalot::llama {

class Model {
 public:
  // @param chat_template  one that libllama knows, by name or text; empty: the model's own
  // @errors kNotFound, kBadInput: no model that libllama reads, kInvalidArgument: the template
  static Result<Model> load(const std::string& path, const std::string& chat_template,
                            const llama_model_params& params);

  llama_model* get() const { return model_.get(); }
  std::uint32_t trained_context_tokens() const;
  // A context holds each token's KV until it is told to remove it, so that the front of a prompt can
  // stay. Not so where the state is recurrent, or attention looks back over a window only.
  bool keeps_all_tokens() const;

  // Of keys and values together, about: what the model's file says of its shape. 0: they do not grow with
  // the context, or not in all layers (recurrent and hybrid models).
  std::uint64_t kv_bytes_per_token(ggml_type type) const;

  // @param most  a text that is certain to have more tokens is not looked at: its time would have no bound
  // @errors kInvalidArgument: nothing to begin with, a token out of range; kNoSpace: certainly more than
  //         `most` tokens; kUnsupported: a conversation, and no template that libllama knows
  Result<std::vector<Token>> tokens_of(const Request::Prompt& prompt, std::size_t most) const;
  // Of a text, for each of its tokens at most.
  std::size_t most_token_bytes() const { return most_token_bytes_; }
  // The bytes that a token stands for; they may end inside a character. Control tokens have none.
  std::string bytes_of(Token token) const;
  bool ends(Token token) const { return llama_vocab_is_eog(vocabulary_, token); }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  Model(llama_model* model, std::string chat_template);

  // Of the metadata, ARCHITECTURE.name; none: it is not there.
  std::optional<std::uint64_t> shape_of(const char* name) const;
  Result<std::string> text_of(const std::vector<Message>& messages) const;
  Result<std::vector<Token>> tokenised(const std::string& text, std::size_t most) const;

  std::unique_ptr<llama_model, Free> model_;
  const llama_vocab* vocabulary_;
  std::string chat_template_;  // empty: the model has none
  std::size_t most_token_bytes_;
};

}  // namespace cachalot::llama
