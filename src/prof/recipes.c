#include "prof/draw.h"

const cup__recipe cup__recipes[] = {
#define RECIPE(op, forward, shapes, attributes, values) {#op, forward, shapes, attributes, values},
#include "prof/recipes.def"
#undef RECIPE
    {NULL, NULL, NULL, NULL, NULL}};
