// Types that JSDoc cannot express, or that many scripts use.

export type Child = Node | string | number | null | undefined | false | Child[];
export type Attribute =
  | string
  | number
  | boolean
  | null
  | undefined
  | Partial<CSSStyleDeclaration>
  // deno-lint-ignore no-explicit-any
  | ((event: any) => unknown);
export type Attributes = Record<string, Attribute>;
