/* New keys and values are put in their pages, for cpu.c. */

/* Rows of ``size`` elements, [tokens, heads], and the pages they belong to; strides count elements. */
struct rows {
    const char *new;
    char *cache;
    int64_t size, new_token, new_head, page, head, token;
};

/* What Python passes: a layer's keys and values, their pages and places there by token. */
struct put {
    const int64_t *pages, *offsets; /* [tokens] */
    int64_t tokens, heads, bytes;   /* bytes of an element */
    struct rows key, value;
};

static void put_rows(const struct put *p, const struct rows *r) {
    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++)
            memcpy(r->cache + p->bytes * (p->pages[t] * r->page + h * r->head +
                                          p->offsets[t] * r->token),
                   r->new + p->bytes * (t * r->new_token + h * r->new_head),
                   (size_t)(p->bytes * r->size));
}

void octavo_put_rows(const struct put *p) {
    put_rows(p, &p->key);
    put_rows(p, &p->value);
}
