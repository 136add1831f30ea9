/* The description of a GPT in files. */
#ifndef CUP_NN_CONFIG_H
#define CUP_NN_CONFIG_H

#include "base/json.h"
#include "cupola/nn.h"

/* The config as a JSON object under the key, and back. */
void cup__gpt_config_write(cup__json_writer *writer, const char *key, const cup_gpt_config *config);
cup_status cup__gpt_config_read(cup_context *c, const cup__json *json, const cup__json_node *object,
                                cup_gpt_config *config);

/* The name of a field in which two checked configs differ; NULL: none. */
const char *cup__gpt_config_differs(const cup_gpt_config *a, const cup_gpt_config *b);

#endif
